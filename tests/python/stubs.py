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
    for module in (bags, bags.granular):
        for name, node in _names(module):
            if name.startswith('_') and name != '__version__':
                continue
            what = getattr(module, name)
            assert not isinstance(node, ast.FunctionDef) or (callable(what) and what.__doc__), name
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef) and member.name not in ('__buffer__', '__iter__'):
                    assert hasattr(what, member.name), (name, member.name)
            if isinstance(node, ast.ClassDef):
                assert what.__doc__, name


def what_is_public_has_a_stub():
    for module in (bags, bags.granular):
        known = dict(_names(module)).keys() | {'Loader', 'sources'}
        assert set(module.__all__) <= known, set(module.__all__) - known
