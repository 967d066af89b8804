# The environment of every node: cluster.yaml copies this file to ~/.throughline.sh, and every shell, Ray and all stages read it.
# A shell that Ray starts for a worker reads it again: what a job has set must stay, hence the defaults.

# The folder that all nodes share (NFS, EFS, Lustre…). Relative paths of every command begin here: `--store runs/store` is
# $THROUGHLINE_HOME/runs/store on whichever node. CHANGE THIS.
export THROUGHLINE_HOME="${THROUGHLINE_HOME:-/mnt/throughline}"

# Stages join the Ray that runs on their node.
export RAY_ADDRESS="${RAY_ADDRESS:-auto}"

# Whoever talks to Ray must know the token in ~/.ray/auth_token (`ray get-auth-token --generate` makes it, once, on your laptop;
# cluster.yaml copies it to the nodes).
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0

# Ray's workers run at nice 15 unless told otherwise: beside any other work on the machine they would get next to nothing.
export RAY_worker_niceness="${RAY_worker_niceness:-0}"

# `ray job stop` sends SIGTERM, and SIGKILL after so many seconds: a run saves its step in between.
export RAY_JOB_STOP_WAIT_TIME_S=600

# A dead machine is noticed within seconds; comment these out where the network often stalls for longer.
export RAY_health_check_period_ms=500
export RAY_health_check_timeout_ms=2000
export RAY_health_check_failure_threshold=5

# Python finds the project in ~/throughline, and not in the folder of the script (ray submit copies that to ~).
case ":$PATH:" in *":$HOME/throughline-environment/bin:"*) ;; *) export PATH="$HOME/throughline-environment/bin:$PATH" ;; esac
case ":${PYTHONPATH:-}:" in *":$HOME/throughline:"*) ;; *) export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HOME/throughline" ;; esac
export PYTHONSAFEPATH=1

# Networks. Workers choose the interface that has their node's address; where NCCL or gloo should take another (InfiniBand, a
# second card), name it:
# export NCCL_SOCKET_IFNAME=ib0
# export GLOO_SOCKET_IFNAME=ib0

# Buckets, and an MLflow server, where you use them. Credentials stay in this file on the nodes: no log, no job and no run has them.
# export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=…
# export MLFLOW_TRACKING_URI=http://10.0.0.1:5000

# An environment with all of the pins that the machine has already (an image's): taken instead of installing one.
# export THROUGHLINE_ENVIRONMENT=/opt/throughline
