#!/bin/sh
# Starts the @what in the foreground; ends with Ctrl-C or SIGTERM. More options may follow.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export FEDSTRATA_STATE="${FEDSTRATA_STATE:-$here/state}"
chmod 600 "$here"/keys/*.key "$here"/keys/identity.json 2>/dev/null || true  # some archivers lose modes
exec "${FEDSTRATA:-fedstrata}" @command "$@@"
