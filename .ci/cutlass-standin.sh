#!/bin/sh
# cutlass-standin.sh DIR: a folder for CUDAFORGE_HOME in which flash attention's build finds CUTLASS, empty, at the commit that
# it asks for: it would be cloned, and types do not need it.
set -eu
commit=7d49e6c7e2f8896c47f586706e67e1fb215529dc
folder=$1/git/checkouts/cutlass-7d49e6c7e2f8896c
mkdir -p "$folder/include"
git init --quiet "$folder"
printf '%s\n' "$commit" >"$folder/.git/HEAD"
