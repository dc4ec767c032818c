"""Options without argparse, which costs more memory than the worker: `--name value`, `--name=value`, flags, `--`."""

from edgeq.errors import BadUsage


def parse(verb, argv, spec):
    """({option: value}, [argument]). spec: option -> `flag`, `text`, `whole` (int) or `seconds` (int or float)."""
    options, args = {}, []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return options, args + words
        if not word.startswith("-") or word == "-" or word[1:2].isdigit():  # a negative number is JSON
            args.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = {"h": "help"}.get(name, name)
        if (word.startswith("--") != (len(name) > 1) and word != "-h") or name not in spec:
            raise BadUsage(verb, word[:40], "no such option" + suggest(word, ["--" + known for known in spec]),
                           "'edgeq %s --help' lists them" % verb)
        if spec[name] == "flag":
            if equals:
                raise BadUsage(verb, word[:40], "takes no value")
            options[name] = True
            continue
        if not equals:
            if not words:
                raise BadUsage(verb, word, "needs a value")
            value = words.pop(0)
        options[name] = _converted(verb, word, value, spec[name])
    return options, args


def _converted(verb, word, value, kind):
    if kind == "whole":
        if not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise BadUsage(verb, "%s %s" % (word[:40], value[:40]), "not a whole number")
        return int(value)
    return value


def suggest(word, known):
    """`, did you mean 'X'?` or nothing."""
    try:
        import difflib  # only ever on the way to an error
    except ImportError:
        return ""  # a trimmed Python
    near = difflib.get_close_matches(word, list(known), 1, 0.6)
    return ", did you mean '%s'?" % near[0] if near else ""
