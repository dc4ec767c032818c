# shellcheck shell=sh disable=SC2034 # the handler uses what is set here
# For handlers written in shell, read with ". /usr/lib/edgeq/handler.sh": the payload in
# $payload, its values by need and may, settings of /etc/edgeq/handlers.conf by setting.
# Nothing of a payload is ever executed: it is only compared, or passed as one argument.

LC_ALL=C
payload=$(cat)
handler=${0##*/}
etc=${0%/*}/..
json_get=$etc/../../usr/lib/edgeq/json-get
[ -x "$json_get" ] || json_get=/usr/lib/edgeq/json-get

# fail CODE WORD...: end with a reason. The last line said becomes the job's last error.
fail() {
	code=$1
	shift
	printf '%s: %s\n' "$handler" "$*" >&2
	exit "$code"
}

# may [-r] KEY: the payload's KEY in $value; 1 when it has none. What cannot be used is
# wrong for ever.
may() {
	value=$(printf '%s\n' "$payload" | "$json_get" "$@")
	case $? in
	0) return 0 ;;
	1) return 1 ;;
	65) exit 65 ;;
	*) fail 75 "json-get failed" ;;
	esac
}

# need [-r] KEY: as may, but without KEY the job is wrong.
need() {
	may "$@" || fail 65 "the payload has no such key: $*"
}

# setting KEY DEFAULT: KEY's value in handlers.conf in $value; the last of equal keys wins.
setting() {
	value=$2
	[ -r "$etc/handlers.conf" ] || return 0
	while IFS= read -r line || [ -n "$line" ]; do
		case $line in
		"$1="\"*\") line=${line#*=\"} && value=${line%\"} ;;
		"$1="*) value=${line#*=} ;;
		esac
	done <"$etc/handlers.conf"
}

# result TEXT: what the journal keeps of a job that is done.
result() {
	[ -z "${EDGEQ_CTL:-}" ] || printf 'result=%s\n' "$1" >>"$EDGEQ_CTL"
}

# The id is part of file names here and a header there.
case ${EDGEQ_ID:-} in
'' | *[!A-Za-z0-9_-]*) fail 64 "EDGEQ_ID is missing or no job id: the worker sets it" ;;
esac
