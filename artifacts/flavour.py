"""The folder that MLflow takes for a model: a published folder in it, and `MLmodel`, which says how it is loaded.

`mlflow.pyfunc.load_model` gives `sfumato.mlflow_model.PyfuncModel`, wherever the library is installed. Nothing is pickled. Images in the
published folder are one Parquet file, since the certificate and its check belong to the whole folder.
"""

import json
import platform
from pathlib import Path

from artifacts.tracking import MODEL
from sfumato import __version__, mlflow_model

BUNDLE = "bundle"
"""The published folder within."""
ML_MODEL, EXAMPLE, REQUIREMENTS = "MLmodel", "input_example.json", "requirements.txt"
"""Names that MLflow looks for."""
FORM = "parquet"
"""Form of the images in the bundle."""


def write_flavour(folder: Path, *, run: str) -> None:
    """Write `MLmodel`, an example of what to ask for, and what must be installed, beside the bundle in `folder`; `run` is MLflow's."""
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    inputs, outputs = (
        Schema([ColSpec(kind, name, required=name != "seed") for name, kind in columns.items()])
        for columns in (mlflow_model.COLUMNS, mlflow_model.DRAWN)
    )
    example = {"columns": list(mlflow_model.EXAMPLE), "data": [list(mlflow_model.EXAMPLE.values())]}
    (folder / EXAMPLE).write_text(json.dumps(example), encoding="utf-8")
    (folder / REQUIREMENTS).write_text(f"sfumato=={__version__}\npandas\n", encoding="utf-8")
    model = Model(
        artifact_path=MODEL,
        run_id=run,
        signature=ModelSignature(inputs=inputs, outputs=outputs),
        saved_input_example_info={"artifact_path": EXAMPLE, "type": "dataframe", "pandas_orient": "split"},
    )
    model.add_flavor(
        "python_function",
        loader_module=mlflow_model.__name__,
        data=BUNDLE,
        env={},
        python_version=platform.python_version(),
    )
    model.save(str(folder / ML_MODEL))
