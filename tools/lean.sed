# The shell wrapper as a board gets it: without comments, indentation and empty lines. What ash reads it must parse, at each
# enqueue. The marks of the guard's text stay: the guard reads itself by them (start_guard). The code is indented by tabs; blanks at
# the beginning of a line belong to a text.
1b
/^#--- the guard/b
/^	*#/d
s/^	*//
/^$/d
