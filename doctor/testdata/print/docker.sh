# What 1000000 connections need (side both, 4096 bytes unread on each), as `myriad doctor --print docker` prints it.
# Put your image, and what it is to run, in place of IMAGE.
#
# These are the machine's, for all its containers; `--print sysctl` writes a file of them:
#   sysctl -w fs.nr_open=1200000
#   sysctl -w net.ipv4.tcp_mem='900000 1000000 1200000'
#   sysctl -w net.netfilter.nf_conntrack_max=1200000
#
# If --memory is given, it needs 8692m: sockets count too.
#
# With --network host leave out each --sysctl, and set these on the machine too.
#
# Docker's own seccomp profile forbids io_uring (since version 25): Myriad then runs on epoll. To allow
# it, take that profile, add io_uring_setup, io_uring_enter and io_uring_register, and give it by
#   --security-opt seccomp=PROFILE.json
# See https://docs.docker.com/engine/security/seccomp/
docker run \
  --ulimit nofile=1125144:1125144 \
  --ulimit memlock=67108865:67108865 \
  --sysctl net.ipv4.ip_local_port_range='1024 65535' \
  --sysctl net.core.somaxconn=8192 \
  IMAGE
