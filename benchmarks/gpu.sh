#!/usr/bin/env bash
# Measures everything on one GPU, in parts that each take less than 9 minutes and stand alone; prints JSON lines.
#
#   benchmarks/gpu.sh [PART ...] [--smoke]        (default: all parts, in this order: what matters most comes first)
#
#   checks    training is right: loss, compiling, resuming, NaN, checkpoints, export, padding,
#             fine-tuning and reading (gpu_checks.py)
#   recipe    imdb-small-gpu, four minutes of pretraining (gpu_recipe.py)
#   stock     BERT-base at 128 and 512 against stock BERT and ModernBERT, on text without pairs (against_stock.py)
#   loop      the loop against the bare step (loop.py)
#   profile   where a step's time goes (step_profile.py)
#   padding, compile, rows, optimizer, model
#             one choice changed at a time: with padding and without, CUDA graphs, masks, Muon, dropout and architecture
#             (gpu_ablation.py)
#   sweep     the size of the micro-batch (gpu_ablation.py)
#   pairs     as stock, on pairs
#
# Only standard output holds results: `benchmarks/gpu.sh checks >checks.jsonl 2>checks.log` keeps both.
# --smoke shows on a CPU, with tiny sizes and in some minutes on two cores, that every part works; only the checks
# compile then.
# A part that fails or runs longer than 9 minutes leaves a line with "error"; the others go on.
#
# Environment:
#   PYTHON  the interpreter (default: python3). It needs torch and transformers; bertpre need not be installed.
#   RUN     a run directory with prepared text, made elsewhere (there `datasets` is needed, here it is not):
#             bertpre prepare imdb-small-gpu corpus.path=IMDB output_dir=RUN
#           Without it the embedded corpus is read.
#   WHEELS  a folder of wheels to use on a machine without network, with what it lacks of bertpre's dependencies
#           (gpu_wheels.txt says how to fill it). They are unpacked into a temporary folder.

[ -z "${RUN:-}" ] || RUN=$(realpath -m "$RUN")  # before the folder changes
[ -z "${WHEELS:-}" ] || WHEELS=$(realpath -m "$WHEELS")
if [ -n "${RUN:-}" ] && [ ! -d "$RUN/data" ]; then
    echo "RUN=$RUN has no prepared text: bertpre prepare imdb-small-gpu corpus.path=IMDB output_dir=RUN" >&2
    exit 2
fi
cd "$(dirname "$0")/.." || exit
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1

if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$place/site" "$WHEELS"/*.whl || exit
    export PYTHONPATH="$PYTHONPATH:$place/site"
    # A package that is missing shows now, and not in every part.
    "$python" -c 'import bertpre.commands.pretrain, transformers.modeling_utils' || exit 2
fi

parts=() smoke=()
for argument in "$@"; do
    if [ "$argument" = --smoke ]; then smoke=(--smoke); else parts+=("$argument"); fi
done
[ ${#parts[@]} -gt 0 ] || parts=(checks recipe stock loop profile padding compile rows optimizer model sweep pairs)

text=${RUN:-sample} stock=(base_128 base_512) profiled=base_128 rounds=5 looped=("${RUN:-imdb-small-gpu}")
if [ ${#smoke[@]} -gt 0 ]; then
    text=sample stock=(tiny) profiled=tiny rounds=1
    looped=(quickstart corpus.limit=300 model.hidden_size=32 model.num_hidden_layers=1 training.global_batch_size=4)
fi

status=0
for part in "${parts[@]}"; do
    case $part in
        checks) command=(gpu_checks.py "${smoke[@]}") ;;
        stock) command=(against_stock.py $rounds "$text" none "${stock[@]}") ;;
        pairs) command=(against_stock.py $rounds "$text" nsp "${stock[@]}") ;;
        padding) command=(gpu_ablation.py padding modern_padding "${smoke[@]}") ;;
        compile | rows | optimizer | model) command=(gpu_ablation.py "$part" "${smoke[@]}") ;;
        sweep) command=(gpu_ablation.py rows_of_128 rows_of_512 "${smoke[@]}") ;;
        profile) command=(step_profile.py $profiled) ;;
        loop) command=(loop.py $rounds "${looped[@]}") ;;
        recipe) command=(gpu_recipe.py "${smoke[@]}" ${RUN:+"$RUN"}) ;;
        *) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    export TORCHDYNAMO_DISABLE=$([ ${#smoke[@]} -gt 0 ] && [ "$part" != checks ] && echo 1 || echo 0)
    begun=$SECONDS
    # timeout also ends the part's worker processes. Only lines of JSON are results; the rest is progress.
    {
        {
            timeout --kill-after=10 530 "$python" "benchmarks/${command[0]}" "${command[@]:1}"
            echo $? >"$place/code"
        } 2>&1 1>&3 | tee "$place/errors" >&2
    } 3>&1 | while IFS= read -r line; do
        case $line in "{"*) echo "$line" ;; *) echo "$line" >&2 ;; esac
    done
    code=$(cat "$place/code")
    tail -n 1 "$place/errors" | "$python" -c '
import json, sys
part, code, seconds = sys.argv[1:]
line = {"benchmark": "gpu", "part": part, "seconds": int(seconds)}
if code != "0":
    line["error"] = f"exit status {code}: {sys.stdin.read().strip()}"
print(json.dumps(line))' "$part" "$code" $((SECONDS - begun))
    [ "$code" = 0 ] || status=1
done
exit $status
