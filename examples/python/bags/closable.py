"""Base classes of readers, writers and loaders."""


class Closable:
    _unit = 'datapoints'

    def __enter__(self):
        if self.closed:
            raise ValueError(f'{self.path}: this {type(self).__name__} is closed')
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        name = f'<bags.{type(self).__name__}'
        if self.path is None:
            return f'{name}, not opened>'
        state = 'closed' if self.closed else f'{len(self)} {self._unit}'
        return f'{name} {self.path!r}, {state}>'


class Dataset(Closable):

    @property
    def spec(self):
        """The type of each field, sorted by name."""
        return dict(self._spec)
