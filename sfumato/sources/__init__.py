"""Image collections: described without opening a picture, loaded with every fault named, split by a hash of each record.

A source is `digits` (scikit-learn's), `glyphs` (see `sfumato.sources.glyphs`), `shapes` (`sfumato.sources.shapes`), a data set by name (`sfumato.sources.named`), a
folder of pictures (`sfumato.sources.folders`), a table of them (`sfumato.sources.tables`, with the pictures inside
`sfumato.sources.embedded`), a folder of IDX files, an NPZ file, or for public images several of these as `a+b`; of each
some classes may be chosen (`sfumato.sources.chosen`). `sfumato.sources.opening` recognises which it is. `describe` reads names and headers alone;
`load` decodes (`sfumato.sources.loading`); what looks at everything as it is stored lies in `sfumato.sources.contents`. Pictures
are turned as their EXIF orientation says, and grey of more bits becomes 8 (`sfumato.sources.windows`), DICOM files (`sfumato.sources.dicom`)
and volumes (`sfumato.sources.nifti`) included. The digest, the split and the ledger's fingerprints look at what `auto` shows, so that another
window makes no other records of the same files.

Records of a folder or a table may have groups; then a group lies on one side of the split as a whole, by its name.

Not covered: more than 8 bits of colour (Pillow keeps the upper 8), transparency (ignored), frames after the first, and a
check whether two sources hold copies of the same pictures (`same_source` knows names and places alone).
"""

from sfumato.sources.built_in import ALPHABETS, drawn_once
from sfumato.sources.catalogue import GROUP, NO_GROUPS, PATIENT, UNLABELLED, VOLUME, Part, Reading, SourceFacts
from sfumato.sources.contents import (
    files_now,
    inspect,
    left_out,
    resolve_classes,
    source_digest,
    stored_pictures,
    tables_among,
    text_burned_in,
)
from sfumato.sources.dicom import BURNED_IN
from sfumato.sources.identity import (
    NAMES,
    absolute,
    fingerprint,
    held_out_by_hash,
    is_drawn,
    is_there,
    must_exist,
    needs_folder,
    parts_of,
    prefixes,
    same_source,
    used_by_hash,
)
from sfumato.sources.inspecting import Inspection
from sfumato.sources.loading import describe, load, public_reading
from sfumato.sources.private_names import unnamed
from sfumato.sources.published import card_above
from sfumato.sources.tables import column_of_persons
from sfumato.sources.together import Together, inspect_together

__all__ = [
    "ALPHABETS",
    "BURNED_IN",
    "GROUP",
    "NAMES",
    "NO_GROUPS",
    "PATIENT",
    "UNLABELLED",
    "VOLUME",
    "Inspection",
    "Part",
    "Reading",
    "SourceFacts",
    "Together",
    "absolute",
    "card_above",
    "column_of_persons",
    "describe",
    "drawn_once",
    "files_now",
    "fingerprint",
    "held_out_by_hash",
    "inspect",
    "inspect_together",
    "is_drawn",
    "is_there",
    "left_out",
    "load",
    "must_exist",
    "needs_folder",
    "parts_of",
    "prefixes",
    "public_reading",
    "resolve_classes",
    "same_source",
    "source_digest",
    "stored_pictures",
    "tables_among",
    "text_burned_in",
    "unnamed",
    "used_by_hash",
]
