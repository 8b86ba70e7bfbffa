"""What pyproject.toml cannot say: an editable install holds the whole checkout, a wheel the library alone."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARY = "sfumato"


class LibraryWheel(bdist_wheel):
    """A wheel without the folders that are run from a checkout, which is how Prefect deploys a project; its command is that of recipients.

    In a stranger's environment `flows`, `tasks` and `artifacts` would be names that anyone's project may have.
    """

    def run(self) -> None:
        """Build it."""
        everything = self.distribution.packages
        self.distribution.packages = [name for name in everything if name.split(".")[0] == LIBRARY]
        self.distribution.entry_points = {"console_scripts": [f"{LIBRARY} = {LIBRARY}.__main__:main"]}
        self.dist_info_dir = None  # it was written for the whole checkout
        super().run()


setup(cmdclass={"bdist_wheel": LibraryWheel})
