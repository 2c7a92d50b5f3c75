"""The recipes live at the top level for readers and are installed inside the package for `tfperf run`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["tfperf", "tfperf.*"]), "tfperf._recipes"],
    package_dir={"tfperf._recipes": "recipes"},
)
