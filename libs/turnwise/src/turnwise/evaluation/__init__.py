"""What every benchmark's evaluator shares.

| module       | holds                                                                       |
|--------------|-----------------------------------------------------------------------------|
| `journal`    | finished trials on disk, one row each; what is missing; the ledger of all   |
| `playing`    | plays the missing trials, each on disk as it ends, some kept whole          |
| `estimates`  | avg@k, pass@k, maj@k with bounds, and the paired bootstrap of two runs      |

`turnwise.trials` holds the means clustered by task that training uses as well.
"""
