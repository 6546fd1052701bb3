"""Two processes under `accelerate launch` are one process: the same losses, the same weights."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForMaskedLM, BigBirdConfig, BigBirdModel

from bertpre.commands.pretrain import pretrain
from bertpre.launch import names_threads, options_of_launch, use_all_cores
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results
from bertpre.training.trainer import Trainer
from tests.forked import run_forked
from tests.helpers import LIMIT, ROOT, at_step, copy_run, free_port, read_metrics, run_process, training_with

ASKED = ("--cpu", "--num_processes", "2")
LOGGED_DIGIT = 1e-5  # losses are between 1 and 10 and logged with six digits


def launch(
    script: str,
    run: Path,
    target: Path,
    *overrides: str,
    launcher: tuple[str, ...] = ("accelerate.commands.launch", *ASKED),
) -> subprocess.CompletedProcess[str]:
    """Start a script, or a module, on two CPU processes."""
    started = [script] if script.endswith(".py") else ["-m", script]
    arguments = [*started, str(run / "recipe.yaml"), f"output_dir={target}", *overrides]
    return run_process([sys.executable, "-m", *launcher, *arguments])


LAUNCHED = "\nfrom bertpre.cli import launched\nlaunched('pretrain')\n"


def run_ranks(
    program: str, run: Path, target: Path, *overrides: str, count: int = 2, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program on several CPU processes, without a launcher and its imports."""
    arguments = (run / "recipe.yaml", f"output_dir={target}", *overrides)
    return run_forked(program, *arguments, ranks=count, **environment)


def processes_of(run: Path, stage: str) -> int:
    return json.loads((run / "manifest.json").read_text())[stage]["hardware"]["processes"]


def assert_same_figures(target: Path, expected: Path, stage: str) -> None:
    rows, expected_rows = read_metrics(target, stage), read_metrics(expected, stage)
    assert [(row["split"], row["step"]) for row in rows] == [(row["split"], row["step"]) for row in expected_rows]
    for row, other in zip(rows, expected_rows, strict=True):
        for name in row.keys() & {"loss", "mlm_loss", "nsp_loss", "accuracy", "mlm_accuracy", "nsp_accuracy", "tokens"}:
            assert row[name] == pytest.approx(other[name], abs=1.5 * LOGGED_DIGIT), (row["split"], row["step"], name)
        if row["split"] == "train":
            assert row["learning_rate"] == other["learning_rate"]
            assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def assert_same_weights(file: Path, other: Path) -> None:
    weights, expected = load_file(file), load_file(other)
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert (value - expected[name]).abs().max() < 2e-4, name


def test_pretraining_on_two_processes_is_pretraining_on_one(tiny_modern_run: Path, tmp_path: Path) -> None:
    one, two = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("one", "two"))
    adamw = "training.optimizer=adamw"  # Muon's Newton-Schulz steps are in bf16: there a last digit becomes a third one
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={one}", adamw]))
    done = launch("pretrain.py", tiny_modern_run, two, adamw)
    assert done.returncode == 0, done.stderr
    assert processes_of(two, "pretrain") == 2
    assert_same_figures(two, one, "pretrain")
    assert_same_weights(two / "model" / "model.safetensors", one / "model" / "model.safetensors")
    assert done.stdout.count("pretrain: 10 steps") == 1


def test_fine_tuning_on_two_processes_is_fine_tuning_on_one(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    done = run_ranks("from bertpre.cli import launched\nlaunched('finetune')", tiny_modern_run, target)
    assert done.returncode == 0, done.stderr
    assert processes_of(target, "finetune") == 2
    assert_same_figures(target, tiny_modern_run, "finetune")
    assert_same_weights(target / "finetuned" / "model.safetensors", tiny_modern_run / "finetuned" / "model.safetensors")


def test_an_encoder_with_weights_that_take_no_part_is_fine_tuned_on_two_processes(
    tiny_run: Path, tmp_path: Path
) -> None:
    """BigBird has a pooler that its classifier does not read; DDP would wait for its gradient."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_run / "tokenizer")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BigBirdConfig(vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=0, **sizes)
    BigBirdModel(config).save_pretrained(tmp_path / "bigbird")
    tokenizer.save_pretrained(tmp_path / "bigbird")
    figures = []
    for ranks in (1, 2):
        target = copy_run(tiny_run, tmp_path / str(ranks), "prepare")
        arguments = (f"finetune.init={tmp_path / 'bigbird'}", "finetune.pooling=null", "finetune.optimizer=adamw")
        program = "from bertpre.cli import launched\nlaunched('finetune')"
        done = run_forked(program, tiny_run / "recipe.yaml", f"output_dir={target}", *arguments, ranks=ranks)
        assert done.returncode == 0, done.stderr
        figures.append(read_results(target)["finetune"]["validation"]["loss"])
    assert figures[1] == pytest.approx(figures[0], abs=1e-3)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /bin/accelerate launch --num_processes 2 -m pretrain.py r", {"num_processes": "2"}),
        (
            "python /bin/accelerate launch --cpu --num_processes 2 pretrain.py r --num_processes 3",
            {"num_processes": "2"},
        ),
        ("python -m accelerate.commands.launch --num-processes=2 pretrain.py r", {"num_processes": "2"}),
        ("python /bin/accelerate launch --cpu pretrain.py r", {}),
        ("python /bin/accelerate launch pretrain.py r", {}),
        ("python /bin/accelerate-launch --num_processes 2 pretrain.py r", {"num_processes": "2"}),
        ("python /bin/torchrun --num_processes 2 pretrain.py r", None),
        ("python -m accelerate.commands.launch --num_processes 2 other.py", None),
        ("npm launch --num_processes 2 pretrain.py", None),
        ("", None),
    ],
)
def test_options_of_launch(command: str, expected: dict[str, str] | None) -> None:
    assert options_of_launch(command.split(), "pretrain.py") == expected


def test_a_path_with_a_space_is_one_option_of_launch() -> None:
    for option in (["--config_file", "my files/a.yaml"], ["--config-file=my files/a.yaml"]):
        command = ["python", "/bin/accelerate", "launch", *option, "--cpu", "pretrain.py", "r"]
        assert options_of_launch(command, "pretrain.py") == {"config_file": "my files/a.yaml"}


def test_a_configuration_file_of_accelerate_sets_the_number_of_processes(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\n"
    )
    launcher = ("accelerate.commands.launch", "--config_file", str(file))
    script = tmp_path / "count.py"
    script.write_text(
        "import os\nfrom bertpre.launch import start_missing_processes\nstart_missing_processes()\n"
        # In one piece: unbuffered, print() writes each part by itself, between those of the other process.
        "os.write(1, f\"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())\n"
    )
    done = run_process([sys.executable, "-m", *launcher, str(script)])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == ["0 of 2", "1 of 2"]


def test_accelerate_launch_leaves_all_cores_to_one_process(tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text(
        "import os\nfrom bertpre.launch import start_missing_processes\nbefore = os.environ['OMP_NUM_THREADS']\n"
        "start_missing_processes()\nprint(before, os.environ.get('OMP_NUM_THREADS'))\n"
    )
    command = ["env", "-u", "OMP_NUM_THREADS", sys.executable, "-m", "accelerate.commands.launch", str(script)]
    done = run_process(command)
    assert done.stdout.split() == ["1", "None"], done.stderr


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, False),
        ({"num_cpu_threads_per_process": "1"}, {}, True),
        ({}, {"OMP_NUM_THREADS": "3"}, True),
    ],
)
def test_who_names_the_threads(options: dict[str, str], environment: dict[str, str], expected: bool) -> None:
    assert names_threads(SimpleNamespace(environ=lambda: environment), options) is expected


@pytest.mark.parametrize(("cores", "expected"), [(8, "4"), (1, "1")])
def test_two_processes_divide_the_cores(cores: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda only_physical_cores: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    use_all_cores(2)
    assert os.environ["OMP_NUM_THREADS"] == expected


def test_several_machines_without_a_gpu_are_refused(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    address = ("--main_process_ip", "127.0.0.1", "--main_process_port", "29999")
    machines = ("--num_machines", "2", *address, "--machine_rank", "0")
    done = launch("pretrain.py", tiny_modern_run, target, launcher=("accelerate.commands.launch", *ASKED, *machines))
    assert done.returncode != 0
    assert "error: without a GPU" in done.stderr


def test_two_processes_report_a_mistake_once(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    done = launch("pretrain.py", tiny_modern_run, target, "training.max_step=3")
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "unknown key 'training.max_step'; did you mean 'training.max_steps'?" in errors[0]
    assert done.stderr.count("Traceback") == 1, done.stderr  # accelerate's own, which its option -q leaves out
    assert "ChildFailedError" not in done.stderr
    assert not (target / "checkpoints").exists()


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run, "pretrain", "train")]


FIFTY = ("training.optimizer=adamw", "training.max_steps=50", "training.eval_every=50", "training.log_every=1000")


EXACT_LOSSES = """
    assert trainer.training_step.wrapped.gradient_as_bucket_view
    sums = trainer.log.sums(trainer.accelerator)  # of this step alone
    trainer.log.start_interval(trainer.clock.now(), trainer.progress.tokens)
    if trainer.accelerator.is_main_process:
        with open(sys.argv[2].removeprefix("output_dir=") + "/exact.txt", "a") as stream:
            print(sums["loss"], file=stream)
"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_fifty_steps_on_several_processes_are_those_on_one(count: int, tiny_modern_run: Path, tmp_path: Path) -> None:
    alone, several = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("alone", "several"))
    losses_alone: list[float] = []

    def note(trainer: Trainer) -> None:
        losses_alone.append(trainer.log.sums(trainer.accelerator)["loss"])
        trainer.log.start_interval(trainer.clock.now(), trainer.progress.tokens)

    results = pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={alone}", *FIFTY]), note)
    done = run_ranks(training_with(EXACT_LOSSES), tiny_modern_run, several, *FIFTY, count=count)
    assert done.returncode == 0, done.stderr
    assert processes_of(several, "pretrain") == count
    exact = [float(line) for line in (several / "exact.txt").read_text().split()]
    assert len(losses_alone) == 50
    assert exact == pytest.approx(losses_alone, abs=1e-5, rel=0)
    assert json.loads((several / "results.json").read_text())["pretrain"]["tokens"] == results["tokens"]


# Every weight of each process, by a digest.
NOTE_WEIGHTS = """
    import hashlib
    weights = trainer.training_step.model.state_dict().values()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights)).hexdigest()
    target, rank = sys.argv[2].removeprefix("output_dir="), trainer.accelerator.process_index
    with open(f"{target}/weights-{rank}.txt", "a") as file:
        print(step, digest, file=file)
"""


@pytest.mark.parametrize("optimizer", ["muon", pytest.param("lamb", marks=pytest.mark.slow)])
def test_processes_hold_the_same_bits_for_fifty_steps(optimizer: str, tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    overrides = (*FIFTY[1:], f"training.optimizer={optimizer}")  # with dropout, which differs between the processes
    done = run_ranks(training_with(NOTE_WEIGHTS), tiny_run, target, *overrides)
    assert done.returncode == 0, done.stderr
    first, second = ((target / f"weights-{rank}.txt").read_text().splitlines() for rank in (0, 1))
    assert len(set(first)) == 50
    assert first == second


def test_micro_batches_in_bf16_on_two_processes_train_as_one_process(tiny_modern_run: Path, tmp_path: Path) -> None:
    one, two = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("one", "two"))
    bf16 = ("training.optimizer=adamw", "training.max_steps=5", "training.eval_every=5", "training.precision=bf16")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={one}", *bf16]))
    rows = [f"training.phases.{phase}.micro_batch_size=1" for phase in (0, 1)]
    done = run_ranks(training_with(""), tiny_modern_run, two, *bf16, *rows)
    assert done.returncode == 0, done.stderr
    for name in ("loss", "grad_norm"):
        pairs = zip(*(read_metrics(run, "pretrain", "train") for run in (one, two)), strict=True)
        for expected, row in pairs:
            assert row[name] == pytest.approx(expected[name], rel=0.01), (row["step"], name)


@pytest.mark.slow  # two processes compile for a minute
def test_compiled_micro_batches_on_two_processes_train_as_one_process(tiny_modern_run: Path, tmp_path: Path) -> None:
    one, two = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("one", "two"))
    adamw = ("training.optimizer=adamw", "training.max_steps=5")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={one}", *adamw]))
    rows = [f"training.phases.{phase}.micro_batch_size=2" for phase in (0, 1)]  # two micro-batches on each process
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    compiled = (*adamw, *rows, "training.compile=true")
    done = launch("bertpre.pretrain", tiny_modern_run, two, *compiled, launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert "compiling the model" in done.stdout
    assert_same_figures(two, one, "pretrain")
    assert_same_weights(two / "model" / "model.safetensors", one / "model" / "model.safetensors")


def test_a_run_resumes_with_another_number_of_processes(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    whole = copy_run(tiny_modern_run, tmp_path / "whole", "prepare")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={whole}", "training.optimizer=adamw"]))
    recipe = load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={target}", "training.optimizer=adamw"])
    with pytest.raises(SystemExit):
        pretrain(recipe, at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert (target / "checkpoints" / "step-00000004").is_dir()
    done = run_ranks(LAUNCHED, tiny_modern_run, target, "training.optimizer=adamw")
    assert "resuming from step 4" in done.stdout
    assert losses(target) == pytest.approx(losses(whole), abs=1.5 * LOGGED_DIGIT)


def test_two_launchers_are_two_machines(tiny_modern_run: Path, tmp_path: Path) -> None:
    target, port = copy_run(tiny_modern_run, tmp_path / "run", "prepare"), free_port()
    address = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    script = [str(ROOT / "pretrain.py"), str(tiny_modern_run / "recipe.yaml"), f"output_dir={target}"]
    machines = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *address, "--node_rank", str(rank), *script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    output = [machine.communicate(timeout=LIMIT)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], output
    assert ["pretrain: 10 steps" in text for text in output] == [True, False]
    assert processes_of(target, "pretrain") == 2
    assert losses(target)[:5] == pytest.approx(losses(tiny_modern_run)[:5], abs=1e-3)  # Muon rounds to bf16


SHARDED = """
import bertpre.pretraining.batches, bertpre.pretraining.build
for module in (bertpre.pretraining.batches, bertpre.pretraining.build):
    module.wants_shards = lambda accelerator: True
"""


# Each process prints how many full tensors it held at most while it gathered them.
COUNTED = """
import atexit, os, weakref
from torch.distributed.tensor import DTensor
full_tensor, seen, held = DTensor.full_tensor, [], [0]

def counted(tensor, **options):
    full = full_tensor(tensor, **options)
    if full.ndim:  # gradient norms are kept until they are checked
        seen.append(weakref.ref(full))
    held.append(sum(each() is not None for each in seen))
    return full

DTensor.full_tensor = counted
atexit.register(lambda: print(f"process {os.environ['RANK']} held {max(held)}", flush=True))
"""


@pytest.mark.parametrize(
    "optimizer", ["adamw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lamb", "muon"))]
)
def test_weights_sharded_over_two_processes_train_as_on_one(
    optimizer: str, tiny_modern_run: Path, tmp_path: Path
) -> None:
    """As accelerate's FSDP would ask for; accelerate itself wants a GPU for it."""
    spread, alone = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("spread", "alone"))
    overrides = (f"training.optimizer={optimizer}", "training.phases.0.micro_batch_size=2")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={alone}", *overrides]))
    done = run_ranks(f"{SHARDED}{COUNTED}{LAUNCHED}", tiny_modern_run, spread, *overrides)
    assert done.returncode == 0, done.stderr
    tolerance = 1e-2 if optimizer == "muon" else 2 * LOGGED_DIGIT
    assert losses(spread) == pytest.approx(losses(alone), abs=tolerance)
    held = {rank: int(count) for rank, count in re.findall(r"process (\d) held (\d+)", done.stdout)}
    assert held["1"] == 1 < held["0"]
    # Checkpoints are not sharded: one process can resume them.
    for folder in ("model", "checkpoints/step-00000010"):
        shutil.rmtree(spread / folder)
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={spread}", *overrides]))
    assert losses(spread) == pytest.approx(losses(alone), abs=tolerance)


# The loss of step 3 is NaN on one process; nobody looks before the log line. Every weight of each process, by a digest.
NAN_ON_ONE_PROCESS = """
    import hashlib
    from bertpre.training.sharding import gather_full
    rank, step_of = trainer.accelerator.process_index, trainer.training_step
    def spoil(module, inputs, outputs):
        if (trainer.progress.step, rank) == (3, 1):
            outputs.loss = outputs.loss * float("nan")
    if step == 1:
        step_of.guard.checks_each_step = False  # as on a GPU
        step_of.wrapped.register_forward_hook(spoil)
    weights = [gather_full(weight.detach()).numpy().tobytes() for weight in step_of.model.parameters()]
    with open(sys.argv[2].removeprefix("output_dir=") + f"/weights-{rank}.txt", "a") as file:
        print(step, hashlib.sha256(b"".join(weights)).hexdigest(), file=file)
"""


@pytest.mark.parametrize(
    ("is_sharded", "optimizer"),
    [
        (False, "adamw"),
        (True, "adamw"),
        *(pytest.param(True, name, marks=pytest.mark.slow) for name in ("lamb", "muon")),
    ],
)
def test_a_gradient_that_is_not_finite_on_one_process_skips_the_step_on_all(
    is_sharded: bool, optimizer: str, tiny_modern_run: Path, tmp_path: Path
) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    program = (SHARDED if is_sharded else "") + training_with(NAN_ON_ONE_PROCESS)
    overrides = (f"training.optimizer={optimizer}", "training.max_steps=7", "training.log_every=7")
    done = run_ranks(program, tiny_modern_run, target, *overrides)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the gradient of step 3 is not finite") == 1
    rows = read_metrics(target, "pretrain", "train")  # two: a line ends with its phase
    assert [(row["step"], row.get("skipped_steps")) for row in rows] == [(5, 1), (7, None)]
    first, second = ((target / f"weights-{rank}.txt").read_text().splitlines() for rank in (0, 1))
    assert first == second
    weights = [line.split()[1] for line in first]
    assert weights[2] == weights[3]  # after steps 2 and 3
    assert len(set(weights)) == 6


# Each process prints how many programs were compiled, by a backend that takes no compiler.
COMPILED = """
import atexit, torch
from torch._dynamo.backends.debugging import aot_eager
programs, compile_module = [], torch.nn.Module.compile

def counting(graph, inputs):
    programs.append(len(inputs))
    return aot_eager(graph, inputs)

torch.nn.Module.compile = lambda module, dynamic: compile_module(module, backend=counting)
atexit.register(lambda: print(f"compiled {len(programs)}", flush=True))
"""


@pytest.mark.parametrize("backend", [COMPILED, pytest.param("", marks=pytest.mark.slow)], ids=["aot_eager", "inductor"])
def test_layers_of_sharded_weights_are_compiled(backend: str, tiny_modern_run: Path, tmp_path: Path) -> None:
    spread, alone = (copy_run(tiny_modern_run, tmp_path / name, "prepare") for name in ("spread", "alone"))
    overrides = ("training.optimizer=adamw", "training.phases.0.micro_batch_size=2")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={alone}", *overrides]))
    overrides += ("training.compile=true",)
    done = run_ranks(f"{SHARDED}{backend}{LAUNCHED}", tiny_modern_run, spread, *overrides)
    assert done.returncode == 0, done.stderr
    assert losses(spread) == pytest.approx(losses(alone), abs=2 * LOGGED_DIGIT)
    if backend:  # two layers, which differ, and two lengths
        assert re.findall(r"compiled (\d+)", done.stdout) == ["4", "4"]


# `accelerate launch` asks for FSDP by these; accelerate takes it up only on GPUs, so its state says it here.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true",
}
AS_ON_GPUS = """
import os
from accelerate import DistributedType
from accelerate.state import AcceleratorState
start = AcceleratorState.__init__

def started(state, *arguments, **options):
    start(state, *arguments, **options)
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        state.distributed_type = DistributedType.FSDP

AcceleratorState.__init__ = started
from bertpre.cli import launched
launched(STAGE)
"""


def launch_fsdp(stage: str, run: Path, target: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Start a stage on two processes, as an accelerate configuration with FSDP does."""
    return run_ranks(AS_ON_GPUS.replace("STAGE", repr(stage)), run, target, *overrides, **FSDP)


def test_fine_tuning_under_fsdp_holds_whole_models_and_says_so(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    done = launch_fsdp("finetune", tiny_modern_run, target)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: FSDP is for pretraining: here each process holds the whole model") == 1
    assert_same_figures(target, tiny_modern_run, "finetune")
    assert_same_weights(target / "finetuned" / "model.safetensors", tiny_modern_run / "finetuned" / "model.safetensors")


def test_pretraining_under_fsdp_starts_from_a_model_without_a_pooler(tiny_run: Path, tmp_path: Path) -> None:
    model = BertForMaskedLM.from_pretrained(tiny_run / "model")
    model.save_pretrained(tmp_path / "init")
    assert not any("pooler" in name for name in load_file(tmp_path / "init" / "model.safetensors"))
    overrides = (f"training.init={tmp_path / 'init'}", "model.hidden_dropout_prob=0", "training.max_steps=2")
    overrides += ("model.attention_probs_dropout_prob=0",)
    spread, alone = (copy_run(tiny_run, tmp_path / name, "prepare") for name in ("spread", "alone"))
    done = launch_fsdp("pretrain", tiny_run, spread, *overrides)
    assert done.returncode == 0, done.stderr
    pretrain(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={alone}", *overrides]))
    assert losses(spread) == pytest.approx(losses(alone), abs=2 * LOGGED_DIGIT)


@pytest.mark.parametrize("file", sorted((ROOT / "recipes" / "accelerate").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_launch_configurations_are_accelerates(file: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(file))
    assert config.mixed_precision == "no"
    assert config.num_processes == {"one-gpu": 1, "eight-gpus": 8, "fsdp": 8, "nodes": 16}[file.stem]
    pages = [(ROOT / "docs" / "how-to" / page).read_text() for page in ("gpus.md", "nodes.md")]
    assert f"recipes/accelerate/{file.name}" in "".join(pages)


def test_processes_part_at_the_end(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    said = "atexit.register(lambda: print(f'still a group: {distributed.is_initialized()}'))"
    done = run_ranks(f"import atexit\nfrom torch import distributed\n{said}{LAUNCHED}", tiny_modern_run, target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("still a group: False") == 2


def test_processes_end_a_budget_together(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    budget = ("training.max_steps=null", "training.budget=30m", "training.eval_every=5")
    done = run_ranks(training_with(UNEVEN), tiny_modern_run, target, *budget)
    assert done.returncode == 0, done.stderr
    assert (target / "model").is_dir()


# Each step takes three minutes, and one process would keep six more in reserve for another evaluation.
UNEVEN = (
    "trainer.clock.started -= 180\n    "
    "step % 5 == 0 and trainer.progress.metrics.update(seconds=360.0 * trainer.accelerator.process_index)"
)
