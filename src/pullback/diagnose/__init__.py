"""Why a backward pass failed, or went wrong without a word: one file in ``checks/`` for each cause."""
