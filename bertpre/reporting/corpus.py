"""The corpus in the report: its audit, and the lengths of documents and sentences."""

from typing import Any

from bertpre.console import dropped_text
from bertpre.reporting.charts import bar_chart
from bertpre.reporting.curves import grid
from bertpre.reporting.page import paragraph, table

WARNED_OF = ("unknown_share", "repeated_line_share", "tokens_in_document", "tokens_in_sentence")  # older runs lack some


def corpus_section(prepared: dict[str, Any]) -> str:
    """The audit of the prepared data as a table, its warnings, and histograms; `prepared` are `prepare`'s results."""
    if not prepared:
        return ""
    from bertpre.data.audit import warnings

    found = list(warnings(prepared)) if all(k in prepared for k in WARNED_OF) else []
    warned = "".join(paragraph(f"Warning: {text}", "warning") for text in found)
    if not found and all(key in prepared for key in WARNED_OF):
        warned = paragraph("The audit found nothing to warn of.")
    charts = [
        bar_chart(
            f"Tokens in a {name.removeprefix('tokens_in_')}", [f"{1 << place:,}" for place in range(len(counts))],
            counts, "tokens (start of each bin)", quantiles(prepared.get(name, {})),
        )
        for name, counts in prepared.get("histograms", {}).items()
    ]  # fmt: skip
    return warned + table(audit_rows(prepared)) + grid(charts)


def audit_rows(prepared: dict[str, Any]) -> list[tuple[str, str]]:
    """What the audit measured, in words; entries that a run of an older version lacks are left out."""
    rows = []
    counts = {"documents": "Documents", "sentences": "Sentences", "tokens": "Tokens", "pairs": "Examples per epoch"}
    rows += [(name, f"{prepared[key]:,}") for key, name in counts.items() if key in prepared]
    if "dropped" in prepared:
        rows.append(("Dropped documents", dropped_text(prepared["dropped"])))
    if "removed_share" in prepared:
        rows.append(("Removed by cleaning", f"{prepared['removed_share']:.1%} of the characters"))
    if "vocab_size" in prepared:
        rows.append(("Vocabulary", f"{prepared['vocab_size']:,} tokens"))
    if "unknown_share" in prepared:
        often = ", ".join(f"{word} ({count:,})" for word, count in [*prepared.get("unknown_words", {}).items()][:5])
        rows.append(("Unknown tokens", f"{prepared['unknown_share']:.3%}" + (f"; most often {often}" if often else "")))
    if "repeated_line_share" in prepared:
        rows.append(("Repeated lines", f"{prepared['repeated_line_share']:.1%}"))
    if "random_next_share" in prepared:
        rows.append(
            (
                "Pairs",
                f"{prepared['unlabelled_pair_share']:.1%} without a label, "
                f"{prepared['random_next_share']:.1%} of the others with label 1",
            )
        )
    return rows + leak_rows(prepared)


def leak_rows(prepared: dict[str, Any]) -> list[tuple[str, str]]:
    """Whether the form of a pair predicts its label."""
    chance = f"(AUC; chance is 0.5 ± {prepared.get('pair_auc_std', 0.0):.3f})"
    names = {
        "pair_lengths_auc": "Label from lengths alone", "pair_ends_auc": "Label from ends alone",
        "pair_form_auc": "Label from lengths and ends",
    }  # fmt: skip
    return [(name, f"{prepared[key]:.3f} {chance}") for key, name in names.items() if key in prepared]


def quantiles(lengths: dict[str, int]) -> str:
    """The median and the middle nine tenths."""
    if not lengths:
        return ""
    return f"median {lengths['median']:,}; 90 % from {lengths['5%']:,} to {lengths['95%']:,}"
