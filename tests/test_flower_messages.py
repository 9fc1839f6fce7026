"""Messages that are wrong: a client refuses them in one line; the server leaves the answer out, and
the run is the one in which that client was not drawn in that round."""

import math

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

import bad_messages  # noqa: E402
import hardening  # noqa: E402
from bad_messages import WHEN, WHO, toy  # noqa: E402
from helpers import LOCAL, mlp, run, same  # noqa: E402
from test_bad_input import check, content  # noqa: E402
from test_bad_input import same as same_as_page  # noqa: E402
from test_flower import alike, plain, remembered  # noqa: E402

from fedbook import FedbookError, methods  # noqa: E402
from fedbook.rounds import Uniform  # noqa: E402


@pytest.fixture(scope="module")
def simulated():
    """A method's run in which one client is not drawn in one round, once."""
    done = {}

    def one(name, sample):
        if (name, sample) not in done:
            method = methods.get(name, **LOCAL).replace(sample=sample)
            done[name, sample] = run(method, toy(), 3, mlp(toy()))
        return done[name, sample]

    return one


REFUSED = [("messages", name, case) for name, case in bad_messages.TO_CLIENTS.items()]
REFUSED += [("starts", name, case) for name, case in bad_messages.STARTS.items()]


@pytest.mark.parametrize("table, name, case", REFUSED, ids=[name for _, name, _ in REFUSED])
def test_a_client_or_a_start_is_refused_in_one_line(tmp_path, table, name, case):
    with pytest.raises(FedbookError) as caught:
        case(tmp_path)
    check(str(caught.value))
    same_as_page(str(caught.value), table, name, tmp_path)


def test_the_message_itself_is_answered(tmp_path):
    """Those above fail for what is wrong with them, and for nothing else."""
    answer = bad_messages.asked(at=tmp_path)
    assert set(answer.content) == {"parameters", "metrics", "values"}
    assert [p.suffix for p in tmp_path.rglob("*") if p.is_file()] == [".safetensors"]
    assert not bad_messages.asked(kind="evaluate").has_error()


def test_a_refused_message_leaves_the_memory_alone(tmp_path):
    bad_messages.asked(at=tmp_path)
    before = content(tmp_path)
    for change in bad_messages.PARAMETERS.values():
        with pytest.raises(FedbookError):
            bad_messages.asked(bad_messages.with_parameters(change), at=tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", bad_messages.ANSWERS)
def test_the_server_leaves_an_answer_out(simulated, name):
    kind, method, spoil = bad_messages.ANSWERS[name]
    found, said = bad_messages.played(kind, method, spoil)
    expected = simulated(method, bad_messages.Without())
    assert same(expected, found.params)
    assert [r.log.get("missing") for r in found.records] == [None, [WHO], None]
    assert found.records[WHEN - 1].participants == [0, 1, 3]
    assert alike(expected.memory.get(WHO), remembered(found.grid, WHO))
    assert len(said) == 2 and said[1] == f"round {WHEN} went on without clients [{WHO}]"
    if "stranger" not in name:
        check(said[0])
    same_as_page(bad_messages.reason(said[0]), "answers", name)


@pytest.mark.parametrize("name", bad_messages.SCORES)
def test_a_test_that_cannot_be_read_is_not_a_number(simulated, name):
    found, said = bad_messages.played("evaluate", "scaffold", bad_messages.SCORES[name])
    expected = simulated("scaffold", Uniform())
    assert same(expected, found.params)
    for ours, theirs in zip(plain(expected.records), plain(found.records), strict=True):
        if theirs["round"] == WHEN:
            for score in ("test_loss", "test_acc", "test_f1"):
                assert math.isnan(theirs[score].pop(WHO))
                ours[score].pop(WHO)
        assert ours.pop("test_loss") == pytest.approx(theirs.pop("test_loss"), abs=1e-6)
        assert ours == theirs
    check(said[0])
    same_as_page(bad_messages.reason(said[0]), "answers", name)


@pytest.mark.parametrize("name", bad_messages.MEETINGS)
def test_a_node_that_does_not_say_who_it_is_is_asked_again(simulated, name):
    spoil = bad_messages.MEETINGS[name]
    found, said = bad_messages.played("query.who", "scaffold", spoil, when=0)
    assert same(simulated("scaffold", bad_messages.First()), found.params)
    assert [r.log.get("missing") for r in found.records] == [[WHO], None, None]
    check(said[0])
    same_as_page(bad_messages.reason(said[0]), "answers", name)


def test_of_two_answers_the_first_counts(simulated):
    """A client answers twice, the second time with something else | the first answer counts"""

    def twice(message):
        content = bad_messages.RecordDict(dict(message.content))
        other = bad_messages.Message(content, dst_node_id=1, message_type="train", group_id="2")
        other.metadata.__dict__.update(message.metadata.__dict__)
        bad_messages.with_parameters(lambda a: bad_messages.Array(a.numpy() * 2))(other.content)
        return [message, other]

    found, said = bad_messages.played("train", "scaffold", twice)
    expected = simulated("scaffold", Uniform())
    assert same(expected, found.params)
    assert plain(expected.records)[1]["weights"] == plain(found.records)[1]["weights"]
    assert said == ["client 2 answered twice: the first answer counts"]


def test_the_page_names_every_case():
    assert list(hardening.rows("messages")) == list(bad_messages.TO_CLIENTS)
    every = [*bad_messages.ANSWERS, *bad_messages.SCORES, *bad_messages.MEETINGS]
    assert list(hardening.rows("answers")) == every
    assert list(hardening.rows("starts")) == list(bad_messages.STARTS)
