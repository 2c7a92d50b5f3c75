"""What pyproject.toml cannot say: the recipes are installed too, and requirements.txt is the one home of the ranges."""

from pathlib import Path

from setuptools import find_packages, setup

LINES = Path(__file__).with_name("requirements.txt").read_text().splitlines()
REQUIREMENTS = [line.partition("#")[0].strip() for line in LINES if not line.startswith("-")]

setup(
    install_requires=[requirement for requirement in REQUIREMENTS if requirement],
    packages=[*find_packages(include=["tfperf", "tfperf.*"]), "tfperf._recipes"],
    package_dir={"tfperf._recipes": "recipes"},  # at the top level for readers, inside the package for `tfperf run`
)
