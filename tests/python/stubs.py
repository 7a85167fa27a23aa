"""The stubs name what exists, and all of it that is public."""
import ast
import pathlib

import bags
import bags.granular


def _names(module):
    stub = pathlib.Path(module.__file__).with_suffix('.pyi').read_text()
    for node in ast.parse(stub).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id, None


def stubs_name_what_exists():
    for name, node in _names(bags):
        if name.startswith('_') and name != '__version__':
            continue
        what = getattr(bags, name)
        assert not isinstance(node, ast.FunctionDef) or (callable(what) and what.__doc__), name
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and member.name not in ('__buffer__', '__iter__'):
                assert hasattr(what, member.name), (name, member.name)
        if isinstance(node, ast.ClassDef):
            assert what.__doc__, name


def what_is_public_has_a_stub():
    known = dict(_names(bags)).keys()
    assert set(bags.__all__) <= known, set(bags.__all__) - known


def granular_is_annotated():
    for name, what in vars(bags.granular).items():
        if isinstance(what, type) and what.__module__ == 'bags.granular':
            assert what.__doc__ and what.__init__.__annotations__['options'], name
