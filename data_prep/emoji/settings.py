"""What decides the content of an emoji set: the packages it comes from and the choices of the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_prep.emoji.vendors import CONCEPTS, TEST_VENDOR, VENDORS, Package, Vendor
from data_prep.errors import DataError

RECIPE = 2  # raise it when the same packages and settings begin to give another content
_LEAST_SIZE, _MOST_SIZE = 8, 1024


@dataclass(frozen=True)
class Catalogue:
    """Where pictures and names come from; tests bring a small one of their own."""

    concepts: Package = CONCEPTS
    vendors: tuple[Vendor, ...] = VENDORS


@dataclass(frozen=True)
class Settings:
    """The choices; each default is the command line's."""

    image_size: int = 96
    heldout_vendor: str = TEST_VENDOR
    share_alike: bool = True
    seed: int = 0

    def check(self, catalogue: Catalogue) -> None:
        """Raise DataError, in the command line's words, for choices that cannot be built."""
        vendors = {vendor.name: vendor for vendor in catalogue.vendors}
        if self.heldout_vendor not in vendors:
            raise DataError(f"--heldout-vendor {self.heldout_vendor!r} is none of {', '.join(vendors)}")
        if vendors[self.heldout_vendor].share_alike and not self.share_alike:
            raise DataError(f"--heldout-vendor {self.heldout_vendor} is share-alike: --no-share-alike leaves it out")
        if not _LEAST_SIZE <= self.image_size <= _MOST_SIZE:
            raise DataError(f"--image-size must be {_LEAST_SIZE} to {_MOST_SIZE}, found {self.image_size}")

    def vendors(self, catalogue: Catalogue) -> list[Vendor]:
        """The vendors that take part, the held-out one last; the test vendor only where it is the held-out one."""
        training = [
            vendor
            for vendor in catalogue.vendors
            if vendor.name not in (TEST_VENDOR, self.heldout_vendor) and (self.share_alike or not vendor.share_alike)
        ]
        return training + [vendor for vendor in catalogue.vendors if vendor.name == self.heldout_vendor]

    def identity(self, catalogue: Catalogue) -> dict[str, Any]:
        """Everything that two equal sets have in common, as stored with a set."""
        packages = [catalogue.concepts, *(vendor.package for vendor in self.vendors(catalogue))]
        return {
            "recipe": RECIPE,
            "image_size": self.image_size,
            "heldout_vendor": self.heldout_vendor,
            "share_alike": self.share_alike,
            "seed": self.seed,
            "packages": {package.spec: package.sha512 for package in packages},
        }

    def command(self, output: str) -> str:
        """The command that builds this set again."""
        words = ["python -m data_prep emoji", f"--output {output}", f"--image-size {self.image_size}"]
        words += [f"--heldout-vendor {self.heldout_vendor}", f"--seed {self.seed}"]
        return " ".join(words + ([] if self.share_alike else ["--no-share-alike"]))


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What two identities differ in, a short phrase each."""
    phrases = []
    for name in sorted(found.keys() | wanted.keys()):
        old, new = found.get(name), wanted.get(name)
        if name == "packages" and isinstance(old, dict) and isinstance(new, dict):
            changed = sorted(spec for spec in old.keys() | new.keys() if old.get(spec) != new.get(spec))
            phrases += [f"packages {', '.join(changed)}"] if changed else []
        elif old != new:
            phrases.append(f"{name} was {old!r} and is now {new!r}")
    return phrases
