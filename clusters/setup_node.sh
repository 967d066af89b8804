#!/usr/bin/env bash
# Makes a node ready; cluster.yaml runs it on each: bash ~/throughline/clusters/setup_node.sh
# Every shell reads ~/.throughline.sh; ~/throughline-environment has the project and its pins, made anew when these change.
set -euo pipefail
cd ~/throughline
umask 077

# First in ~/.bashrc: what comes later in it may be for terminals alone.
if ! grep -qs '^\. ~/.throughline.sh' ~/.bashrc; then
    { echo '. ~/.throughline.sh'; cat ~/.bashrc 2>/dev/null || true; } > ~/.bashrc.new
    mv ~/.bashrc.new ~/.bashrc
fi
. ~/.throughline.sh
chmod 600 ~/.throughline.sh ~/.ray/auth_token
[ ! -e clusters/environment.sh ] || chmod 600 clusters/environment.sh   # the same secrets, where the project's folder is copied

pins=$(cat pyproject.toml constraints.txt | sha256sum)
if [ -n "${THROUGHLINE_ENVIRONMENT:-}" ]; then
    rm -rf ~/throughline-environment   # a link goes, and not what it leads to; in a folder of ours `ln` would make the link inside
    ln -s "$THROUGHLINE_ENVIRONMENT" ~/throughline-environment
elif [ -L ~/throughline-environment ] || [ "$(cat ~/throughline-environment/.complete 2>/dev/null)" != "$pins" ]; then
    rm -rf ~/throughline-environment   # an image's environment, linked before, is not ours to clear: `venv --clear` would follow the link
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "this machine needs Python 3.11 or newer: set PYTHON in ~/.throughline.sh")'
    "${PYTHON:-python3}" -m venv ~/throughline-environment
    ~/throughline-environment/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
    echo "$pins" > ~/throughline-environment/.complete
fi
mkdir -p "$THROUGHLINE_HOME"
python -c 'import ray, torch; print("ready: ray", ray.__version__, "torch", torch.__version__)'
