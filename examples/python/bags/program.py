"""The program `bags`, the command, which the package contains."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def _is_program(path):
    """True for a program that is not a script, such as the one that runs this file."""
    try:
        with open(path, 'rb') as file:
            return os.access(path, os.X_OK) and file.read(2) != b'#!'
    except OSError:
        return False


def command():
    """The path of the command `bags`: of this package, or else an installed one; or None."""
    folders = [os.path.join(HERE, 'command'), *os.get_exec_path()]
    return next(filter(_is_program, (os.path.join(one, 'bags') for one in folders)), None)
