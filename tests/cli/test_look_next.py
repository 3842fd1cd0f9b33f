"""What commands print at their end: where to look next."""

from __future__ import annotations

from pathlib import Path

from memagent_lib.cli.arguments import look_next
from memagent_lib.tracking import mlflow_page


def test_only_what_there_is_to_look_at_is_printed(capsys) -> None:
    look_next(page=Path("a.html"), command="memagent report runs")
    assert capsys.readouterr().err.splitlines() == ["page    a.html", "next    memagent report runs"]


def test_a_page_of_mlflow_has_its_server() -> None:
    page = "experiments/1/runs"
    store = "sqlite:////x/mlflow.db"
    command = f"mlflow server --backend-store-uri {store}"
    assert mlflow_page("http://host:5000/", page) == f"http://host:5000/#/{page}"
    spaced = "sqlite:////my store/mlflow.db"
    assert mlflow_page(spaced, page).endswith(f"while `mlflow server --backend-store-uri '{spaced}'` runs")
    assert mlflow_page(store, page) == f"http://127.0.0.1:5000/#/{page} while `{command}` runs"


def test_the_usual_store_is_served_by_the_lab(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert mlflow_page(uri, "experiments/1/runs").endswith("while `memagent lab` runs")
