import msgspec
import pytest

from penstock.testing.sim import main


def test_a_campaign_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "3 seeds in" in shown
    assert shown.endswith("all seeds are clean\n")


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--workers", "1", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["seeds"] == 2
    assert document["failed"] == []


def test_a_failing_seed_comes_with_its_faults_and_the_command_to_replay_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "20", "--workers", "1", "--planted", "commit-before-journal"]) == 0
    shown = capsys.readouterr().out
    assert "FAILED\n  visibility: " in shown
    assert "--trace --planted commit-before-journal" in shown
    assert "planted bug commit-before-journal: found by seed" in shown


def test_one_seed_is_run_twice_and_traced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--trace"]) == 0
    shown = capsys.readouterr().out
    assert "journal: 0 Submitted by jm" in shown
    assert "the same twice" in shown
