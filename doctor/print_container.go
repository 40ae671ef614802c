package doctor

import (
	"fmt"
	"strings"
)

// This file has what is written for containers. Those have settings of their own
// only where a network namespace has; the others are the machine's below.

// inside are the settings that a container can be given.
func (l *lasting) inside() (own, host []reasoned) {
	for _, s := range l.sysctls {
		if settings[s.Name].own {
			own = append(own, s)
		} else {
			host = append(host, s)
		}
	}
	return own, host
}

// onHost writes, as comments, what has to be set on the machine below.
func onHost(out *strings.Builder, where string, host []reasoned) {
	if len(host) == 0 {
		return
	}
	fmt.Fprintf(out, "#\n# These are %s, for all its containers; `--print sysctl` writes a file of them:\n", where)
	for _, s := range host {
		fmt.Fprintf(out, "#   %s\n", s.Command())
	}
}

// docker writes the command docker run.
func (l *lasting) docker() string {
	own, host := l.inside()
	var out strings.Builder
	out.WriteString(l.head("docker", "Put your image, and what it is to run, in place of IMAGE."))
	onHost(&out, "the machine's", host)
	if l.memory > 0 {
		fmt.Fprintf(&out, "#\n# If --memory is given, it needs %dm: sockets count too.\n", mebibytes(l.memory))
	}
	if len(own) > 0 {
		out.WriteString("#\n# With --network host leave out each --sysctl, and set these on the machine too.\n")
	}
	if l.uring {
		out.WriteString("#\n# Docker's own seccomp profile forbids io_uring (since version 25): Myriad then runs on epoll. To allow\n" +
			"# it, take that profile, add io_uring_setup, io_uring_enter and io_uring_register, and give it by\n" +
			"#   --security-opt seccomp=PROFILE.json\n# See https://docs.docker.com/engine/security/seccomp/\n")
	}
	out.WriteString("docker run \\\n")
	if l.nofile > 0 {
		fmt.Fprintf(&out, "  --ulimit nofile=%d:%d \\\n", l.nofile, l.nofile)
	}
	if l.memlock > 0 {
		fmt.Fprintf(&out, "  --ulimit memlock=%d:%d \\\n", l.memlock, l.memlock)
	}
	for _, s := range own {
		fmt.Fprintf(&out, "  --sysctl %s=%s \\\n", s.Name, quote(s.To))
	}
	out.WriteString("  IMAGE\n")
	return out.String()
}

// kubernetes writes a pod.
func (l *lasting) kubernetes() string {
	own, host := l.inside()
	var out strings.Builder
	out.WriteString(l.head("kubernetes", "Put your image, and what it is to run, in place of IMAGE.",
		"See https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/"))
	onHost(&out, "the node's", host)
	if l.nofile > 0 {
		fmt.Fprintf(&out, "#\n# A pod can't ask for descriptors: it has what the node's container runtime gives, which must be at least\n"+
			"# %d: for containerd LimitNOFILE= of containerd.service, for CRI-O default_ulimits in crio.conf.\n", l.nofile)
	}
	if unsafe := unsafeNames(own); unsafe != "" {
		fmt.Fprintf(&out, "#\n# The node's kubelet has to allow what Kubernetes does not call safe, or the pod does not start:\n"+
			"#   --allowed-unsafe-sysctls=%s\n", unsafe)
	}
	if l.uring {
		out.WriteString("#\n# The profile RuntimeDefault forbids io_uring where containerd is 2.0 or newer: Myriad then runs on epoll.\n")
	}
	out.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: myriad\nspec:\n")
	if len(own) > 0 {
		out.WriteString("  securityContext:\n    sysctls:\n")
		for _, s := range own {
			kind := "unsafe"
			if settings[s.Name].safe {
				kind = "safe"
			}
			fmt.Fprintf(&out, "      - name: %s # %s\n        value: %q\n", s.Name, kind, s.To)
		}
	}
	out.WriteString("  containers:\n    - name: myriad\n      image: IMAGE\n")
	if l.memory > 0 {
		fmt.Fprintf(&out, "      resources: # sockets count too\n        requests:\n          memory: %[1]dMi\n        limits:\n          memory: %[1]dMi\n",
			mebibytes(l.memory))
	}
	return out.String()
}

func unsafeNames(own []reasoned) string {
	var names []string
	for _, s := range own {
		if !settings[s.Name].safe {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ",")
}

// mebibytes is an amount of memory in the unit that systemd, Docker and Kubernetes
// all know, rounded up.
func mebibytes(bytes int64) int64 { return parts(bytes, 1<<20) }
