"""The tables of the five papers: reproduced, kept cell by cell, and judged by rules fixed beforehand."""
