"""Which packages the emoji set is made of: version, hash, licence, and the least number of pictures each must give.

To move to a newer version: `npm view NAME@VERSION dist.integrity`, change the row, build, and correct `least` to what
the build reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Package:
    """An npm package at one version; `sha512` is the registry's `dist.integrity` without its prefix."""

    name: str
    version: str
    sha512: str

    @property
    def spec(self) -> str:
        """The package as npm is asked for it: NAME@VERSION."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Vendor:
    """One artist's set of pictures.

    Attributes:
        layout: "iconify" (SVG bodies in icons.json) or "files" (assets/HEXCODE.webp).
        least: fewer mapped pictures than this is an error.
        renames: icon name -> hexcode where a name says something else than the picture shows; "" leaves it out.
    """

    name: str
    package: Package
    layout: str
    least: int
    licence: str
    attribution: str
    share_alike: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)


# Names that meant another emoji when these sets were drawn.
_OLD_NAMES = {"cricket": "", "up-button": ""}

# Seen by eye: this set calls an animal's head by the bare name, and its body "…side".
_FXEMOJI_RENAMES = {
    "bunny": "1F430",
    "bunnyside": "1F407",
    "cat": "1F431",
    "catside": "1F408",
    "dog": "1F436",
    "dogside": "1F415",
    "dragonside": "1F409",
    "leopardside": "1F406",
    "mouse": "1F42D",
    "mouseside": "1F401",
    "pig": "1F437",
    "pigside": "1F416",
    "tiger": "1F42F",
    "tigerside": "1F405",
    "2hearts": "1F495",
    "aok": "1F44C",
    "bowing": "1F647",
    "bouquetofflowers": "1F490",
    "dizzyface": "1F635",
    "imp": "1F47F",
    "sunglasses": "1F60E",
    "up": "261D-FE0F",
    "beachumbrella": "1F3D6-FE0F",
    "couple": "1F491",
    "pout": "1F64E",
    "pouting": "1F621",
    "wave": "",
    "down": "",
    "kiss": "",
    "bow": "",
    "umbrella": "",
    "tramcar": "",
}

CONCEPTS = Package(
    "emojibase-data",
    "17.0.0",
    "Yvgb5AWoHViHV/gq1qr5ZAarcBip+B27/ZLRsUJkbgAEaLlZ/fof9g882LTpmEpyhBNEC0m2SEmItljHsTygjA==",
)

VENDORS = (
    Vendor(
        "noto",
        Package(
            "@iconify-json/noto",
            "1.2.9",
            "DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw==",
        ),
        "iconify",
        1652,
        "Apache-2.0",
        "Noto Emoji, © Google Inc, https://github.com/googlefonts/noto-emoji",
    ),
    Vendor(
        "noto-v1",
        Package(
            "@iconify-json/noto-v1",
            "1.2.5",
            "/DsVMius69Q0fRS53z7QK1TROSuar606jiIx+laXtdsYGMXpf6LtHBx6CGfoo3UHHb/XpBsw+1L1x3eyPqMuVA==",
        ),
        "iconify",
        1223,
        "Apache-2.0",
        "Noto Emoji (version 1), © Google Inc, https://github.com/googlefonts/noto-emoji",
        renames={**_OLD_NAMES, "asterisk": ""},  # drawn white on white
    ),
    Vendor(
        "fxemoji",
        Package(
            "@iconify-json/fxemoji",
            "1.2.2",
            "UAasRaxzFUKfIGSmLwnoarsssA4LX0VLLuEmplIqM6ZNQqIQRtav8tZ4H1neTlBreXuMQyAifr5jP4kn78DpiQ==",
        ),
        "iconify",
        594,
        "Apache-2.0",
        "FxEmoji, © Mozilla, https://github.com/mozilla/fxemoji",
        renames=_FXEMOJI_RENAMES,
    ),
    Vendor(
        "fluent-emoji-flat",
        Package(
            "@iconify-json/fluent-emoji-flat",
            "1.2.6",
            "RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw==",
        ),
        "iconify",
        1594,
        "MIT",
        "Fluent Emoji (flat), © Microsoft Corporation, https://github.com/microsoft/fluentui-emoji",
    ),
    Vendor(
        "fluent-emoji-3d",
        Package(
            "@lobehub/fluent-emoji-3d",
            "1.1.0",
            "Wlq2lVStTnr8BDpIJ0pEnTKO4LuDxxqTEhTvRtD1DLRF0me7ogeRQjKoehDHXuVJ2Qaecgl5wRBv60lUAG3h7g==",
        ),
        "files",
        1852,
        "MIT",
        "Fluent Emoji (3D), © Microsoft Corporation, https://github.com/microsoft/fluentui-emoji",
    ),
    Vendor(
        "emojione",
        Package(
            "@iconify-json/emojione",
            "1.2.3",
            "T9+T3HIbJNLKKsmxYKlaYhvnHYkz/HNYTV7SHCXVZPfeUi4FqskY70YeN8yYAZT8cCv7w5vJxS4Q1m8zb9CMMg==",
        ),
        "iconify",
        1091,
        "CC-BY-4.0",
        "Emoji One / EmojiTwo, https://github.com/EmojiTwo/emojitwo",
        renames=_OLD_NAMES,
    ),
    Vendor(
        "openmoji",
        Package(
            "@iconify-json/openmoji",
            "1.2.29",
            "vXdhkqcXVSO6suy+m9LbcUM3OdVyuNOtpV8/als/WqfkQIRxevL5Geb/g+6GH/Qwnq1OqksEmaDGTCmZ5nFKJQ==",
        ),
        "iconify",
        1914,
        "CC-BY-SA-4.0",
        "OpenMoji, HfG Schwäbisch Gmünd, https://openmoji.org",
        share_alike=True,
    ),
    Vendor(
        "twemoji",
        Package(
            "@iconify-json/twemoji",
            "1.2.5",
            "uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw==",
        ),
        "iconify",
        1914,
        "CC-BY-4.0",
        "Twemoji, © Twitter and contributors, https://github.com/jdecked/twemoji",
    ),
)

# Never trained on, whatever the options: the set that results are reported on.
TEST_VENDOR = "twemoji"
