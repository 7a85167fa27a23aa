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


def options_in_stubs_are_those_of_c():
    stubs = {name: {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}
             for name, node in _names(bags) if isinstance(node, ast.ClassDef)}
    for stub, struct, other in (
            ('_FieldOptions', 'field', {'has_tolerance'}), ('_WarpOptions', 'warp', set()),
            ('_JitterOptions', 'jitter', set()), ('_TokensOptions', 'tokens', {'has_bos', 'has_eos'})):
        known = set(bags._core.structs[struct][1]) - other
        assert stubs[stub] == known, stubs[stub] ^ known


def only_what_is_public_is_listed():
    assert {name for name in dir(bags) if not name.startswith('_')} == set(bags.__all__)
    assert '__version__' in dir(bags) and all(hasattr(bags, name) for name in dir(bags))


def granular_is_annotated():
    for name, what in vars(bags.granular).items():
        if isinstance(what, type) and what.__module__ == 'bags.granular':
            assert what.__doc__ and what.__init__.__annotations__['options'], name
