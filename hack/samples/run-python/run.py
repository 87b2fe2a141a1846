"""The tool run-python: executes the Python code that an agent wrote.

In, on stdin:   {"code": "..."}
Out, on stdout: {"stdout": "what the code printed", "result": value or null}

The code runs as __main__. If it assigns the name `result`, that value (which
must be JSON) is returned. An exception ends with exit code 1 and its traceback
on stderr; sys.exit(n) ends with exit code n.
"""
import json
import os
import sys


def main():
    code = json.load(sys.stdin)["code"]

    # The code's output is captured below Python, at the file descriptor, so
    # that what a child process or a library prints cannot break our JSON.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    path = f"/tmp/.stdout-{os.getpid()}"
    captured = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(path)
    os.dup2(captured, 1)

    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        exec(compile(code, "<code>", "exec"), namespace)
        sys.stdout.flush()
    except SystemExit as e:
        if e.code not in (None, 0):
            raise
        sys.stdout.flush()
    except BaseException as e:
        fail(e, code)

    try:
        result = json.dumps(namespace.get("result"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        sys.exit(f"the value of `result` cannot be sent as JSON: {e}")
    os.lseek(captured, 0, os.SEEK_SET)
    with os.fdopen(captured, "rb") as f:
        printed = f.read().decode("utf-8", errors="replace")
    answer.write('{"stdout": %s, "result": %s}\n' % (json.dumps(printed), result))
    answer.close()


def fail(e, code):
    """Prints the traceback as the code's author knows it, without our frames."""
    import linecache
    import traceback

    # Gives traceback the source lines of what was compiled from a string.
    linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
    tb = e.__traceback__.tb_next if e.__traceback__ else None
    traceback.print_exception(type(e), e, tb)
    # Nothing of this process is wanted any more, least of all a failing flush
    # of a full /tmp, which would hide the traceback behind a second one.
    sys.stderr.flush()
    os._exit(1)


main()
