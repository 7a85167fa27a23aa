"""Build the extensions with `make python`, which knows the libraries and the flags."""
import os
import re
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
# An sdist has the part of the repository that `make python` needs. A clone is that itself.
COPY = os.path.join(HERE, 'repository')
ROOT = COPY if os.path.exists(COPY) else os.path.dirname(os.path.dirname(HERE))
BUILT = os.path.join(ROOT, 'build', 'python', 'bags')
NEEDED = ['LICENSE', 'Makefile', 'bags.h', 'formats', 'examples/bags', 'examples/python', 'examples/viewer']


def version():
    try:
        with open(os.path.join(ROOT, 'bags.h'), encoding='utf-8') as file:
            return re.search(r'define BAGS_VERSION "(.*)"', file.read())[1]
    except FileNotFoundError:
        sys.exit('bags.h was not found: install from a clone, pip install ./examples/python, '
                 'or from an sdist')


class Make(build_ext):
    """`make python` writes the extensions, and the command unless json-c is missing."""

    def run(self):
        subprocess.check_call(['make', 'viewer'], cwd=ROOT)
        subprocess.check_call(['make', 'python', f'PYTHON={sys.executable}'], cwd=ROOT)
        super().run()
        target = os.path.dirname(self.get_ext_fullpath('bags._core'))
        command = os.path.join(BUILT, 'command')
        if os.path.exists(command):
            shutil.copytree(command, os.path.join(target, 'command'), dirs_exist_ok=True)
        page = os.path.join(BUILT, 'viewer.html')
        if os.path.exists(page):
            shutil.copy(page, target)

    def build_extension(self, extension):
        target = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.join(BUILT, extension.name.split('.')[-1] + '.abi3.so'), target)


class Source(sdist):

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if ROOT == COPY:
            sys.exit('an sdist is made in a clone')
        names = subprocess.check_output(['git', 'ls-files', '-z', *NEEDED], cwd=ROOT).decode()
        for name in filter(None, names.split('\0')):
            target = os.path.join(base_dir, 'repository', name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), target)


setup(
    version=version(),
    ext_modules=[Extension(f'bags.{name}', [], py_limited_api=True)
                 for name in ('_core', '_doors', '_far')],
    cmdclass={'build_ext': Make, 'sdist': Source},
    options={'bdist_wheel': {'py_limited_api': 'cp311'}})
