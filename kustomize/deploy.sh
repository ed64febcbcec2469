#!/usr/bin/env bash
# Install Kip into a cluster of Amazon EKS, as docs/eks.md says. It takes its settings from the environment, and flags of kipctl eks deploy:
# ./kustomize/deploy.sh --check checks everything and changes nothing.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)

kipctl=${KIPCTL:-$top/bin/kipctl}
[ -x "$kipctl" ] || kipctl=$(command -v kipctl) || {
	echo "deploy.sh: there is no kipctl: run make bin/kipctl in $top, or put that of a release into your PATH (docs/releases.md)" >&2
	exit 1
}
exec "$kipctl" eks deploy --image-folder="$top/bin/image" "$@"
