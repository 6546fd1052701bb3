"""`bertpre doctor`: what this machine can do, and whether the prepared data is whole and sound."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from bertpre.data.audit import audit_lines, count_tokens
from bertpre.data.masking import IGNORED
from bertpre.data.store import SPLITS, open_shards, read_manifest
from bertpre.data.tokenizer import fingerprint, load_tokenizer
from bertpre.prepare import FROM_MANIFEST, audit
from bertpre.pretrain import PretrainingData
from bertpre.recipe import Recipe
from bertpre.runtime import can_compile, choose_dtype, cpu_name, measured_flops, start_accelerator


def doctor(recipe: Recipe) -> None:
    """Print what was examined, a line each; changes nothing.

    Raises UserError where the prepared data is damaged or does not belong to the tokenizer.
    """
    accelerator = start_accelerator()
    folder = Path(recipe.output_dir)
    report("machine", machine_lines(recipe, accelerator.device, folder))
    if not (folder / "data").exists():
        print(f"data: none yet in {folder}; `bertpre prepare` makes it")
        return
    report("data", data_lines(recipe, folder))
    data = PretrainingData(recipe, load_tokenizer(folder / "tokenizer"), folder / "data", accelerator)
    report("masks", mask_lines(data))


def report(title: str, lines: Iterator[str]) -> None:
    """Print a title and its lines as they come."""
    print(title, flush=True)
    for line in lines:
        print(f"  {line}", flush=True)


def machine_lines(recipe: Recipe, device: torch.device, folder: Path) -> Iterator[str]:
    """Processor, memory, disk, precision and compiler."""
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else f"{cpu_name()}, {os.cpu_count()} cores, no GPU"
    dtype = choose_dtype(recipe.training.precision, device)
    rate = measured_flops(device, dtype, 8192 if is_gpu else 1024)
    yield f"{name}: {rate / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}, which training would use"
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    yield f"free: {psutil.virtual_memory().available / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB of disk"
    yield compiler_line(device)


def compiler_line(device: torch.device) -> str:
    """Whether torch.compile works, tried on a small function."""
    if not can_compile(device):
        return "torch.compile: off, for want of a compiler (g++ or clang++; Triton on a GPU); training will be slower"
    start = time.perf_counter()
    try:
        torch.compile(lambda values: values.exp() + 1)(torch.ones(64, device=device))
    except Exception as error:  # whatever the compiler's trouble is: this is the place to tell it
        reason = str(error).strip().splitlines()[0]
        return f"torch.compile: fails ({reason}); switch it off with training.compile=false"
    return f"torch.compile: works, {time.perf_counter() - start:.0f} s for a small function"


def data_lines(recipe: Recipe, folder: Path) -> Iterator[str]:
    """The audit of `prepare` over again, from what lies on the disk now."""
    tokenizer = load_tokenizer(folder / "tokenizer")
    shards = {split: open_shards(folder / "data", split, fingerprint(tokenizer)) for split in SPLITS}
    files = {str(part.filename) for split in shards.values() for shard in split for part in vars(shard).values()}
    yield f"{len(files)} files agree with their checksums, and the tokenizer is theirs"
    figures = {key: read_manifest(folder / "data")[key] for key in FROM_MANIFEST} | audit(folder, recipe)
    figures |= count_tokens(shards["train"], len(tokenizer), tokenizer.unk_token_id)
    yield from audit_lines(figures)


def mask_lines(data: PretrainingData) -> Iterator[str]:
    """What the collator does to the validation examples."""
    mask_id, sums = data.collators[0].special_ids["[MASK]"], torch.zeros(4)
    for batch in data.validation_batches():
        labels, shown = batch["labels"], batch["input_ids"].gather(1, batch["masked_positions"])
        kinds = (labels != IGNORED, shown == mask_id, shown == labels)
        sums += torch.stack([batch["attention_mask"].sum(), *(kind.sum() for kind in kinds)]).cpu()
    tokens, targets, masked, kept = sums.tolist()
    yield (
        f"{targets / tokens:.1%} of the tokens are targets: {masked / targets:.1%} of them show [MASK], "
        f"{(targets - masked - kept) / targets:.1%} another token, {kept / targets:.1%} themselves"
    )
