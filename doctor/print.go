package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Formats are what Print can write.
var Formats = []string{"sysctl", "systemd", "docker", "kubernetes", "limits"}

// Print writes what makes a machine ready for the report's plan each time it
// starts, in one of Formats:
//
//	sysctl      a file for /etc/sysctl.d
//	systemd     a drop-in for a service's unit
//	docker      the command docker run with its flags
//	kubernetes  a pod
//	limits      a file for /etc/security/limits.d
//
// It holds all that the plan needs above what a kernel begins with, also what this
// machine has already, so that it comes out the same before and after Apply and
// suits other machines too; and what this machine has less of than a kernel begins
// with. A setting that is above what the plan needs is written as it is. It does not
// count on a descriptor table for each loop.
func Print(w io.Writer, kind string, r *Report) error {
	writers := map[string]func(*requirements) string{
		"sysctl": (*requirements).sysctl, "systemd": (*requirements).systemd, "docker": (*requirements).docker,
		"kubernetes": (*requirements).kubernetes, "limits": (*requirements).limits,
	}
	write := writers[kind]
	if write == nil {
		return fmt.Errorf("doctor: the format %q; expected one of %s", kind, strings.Join(Formats, ", "))
	}
	l, err := requirementsOf(r)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, write(l))
	return err
}

// requirements is what a machine needs for a plan, whatever it has now.
type requirements struct {
	plan    Plan
	sysctls []explained
	nofile  int64 // 0 where what every machine has is enough
	memlock int64 // bytes, likewise
	memory  int64 // bytes that a container with its processes and sockets is to have
	uring   bool
}

// explained is a change with the wall that it moves.
type explained struct {
	Change
	why string
}

// requirementsOf is what the plan needs of a machine that has nothing but what a
// kernel begins with.
func requirementsOf(r *Report) (*requirements, error) {
	if r == nil || r.Facts == nil {
		return nil, fmt.Errorf("doctor: a report without facts; expected one of Examine")
	}
	bare, err := Examine(defaultFacts(r.Facts), r.Plan)
	if err != nil {
		return nil, err
	}
	l := &requirements{plan: bare.Plan, uring: bare.Plan.Model != "epoll" && bare.Plan.Model != "goroutine"}
	for _, c := range united(bare.Changes(), r.Changes()) {
		switch c.Kind {
		case Sysctl:
			c.From = r.Facts.Sysctls[c.Name]
			c.To = c.widest(c.From, c.To)
			l.sysctls = append(l.sysctls, explained{c, cmp.Or(bare.why(c), r.why(c))})
		case Nofile:
			l.nofile = atLeast(c.To, r.Facts.Process.Nofile.Hard)
		case Memlock:
			l.memlock = max(atLeast(c.To, r.Facts.Process.Memlock.Hard), newMemlock)
		}
	}
	x := newExam(bare.Facts, bare.Plan)
	l.memory = withHeadroom(x.needed(x.charged()))
	return l, nil
}

// united is the changes of both lists, one for each setting, with what suits both.
func united(list, other []Change) []Change {
	for _, c := range other {
		same := func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name }
		if i := slices.IndexFunc(list, same); i >= 0 {
			list[i].To = c.widest(list[i].To, c.To)
		} else {
			list = append(list, c)
		}
	}
	return list
}

// newMemlock is what a kernel begins with since Linux 5.16, and oldMemlock what
// it did before.
const (
	newMemlock = 8 << 20
	oldMemlock = 64 << 10
)

// atLeast is the limit that a change asks for, or the present hard one if that is higher;
// 0 where there is none: then there is nothing to write.
func atLeast(to string, hard int64) int64 {
	n, err := strconv.ParseInt(to, 10, 64)
	if err != nil || hard < 0 {
		return 0
	}
	return max(n, hard)
}

// defaultFacts is the machine as it would be if nobody had changed a setting and
// nothing ran on it, for somebody who may change all.
func defaultFacts(f *Facts) *Facts {
	bare := *f
	bare.ReadOnly = nil
	bare.Sysctls = make(map[string]string, len(f.Sysctls))
	for name, value := range f.Sysctls {
		if s := settings[name]; s.least != "" {
			value = s.least
		}
		bare.Sysctls[name] = value
	}
	bare.Shards = "other machines may forbid it"
	bare.Process.Nofile = Rlimit{Soft: 1024, Hard: 4096} // include/asm-generic/resource.h
	bare.Process.Memlock = Rlimit{Soft: oldMemlock, Hard: oldMemlock}
	bare.Process.Root, bare.Process.Raise, bare.Process.Locks = false, true, false
	bare.Process.UserTasks, bare.Tasks, bare.FilesOpen = 0, 0, 0
	bare.Cgroup = CgroupFacts{}
	s := &bare.Sockets
	s.Open, s.TimeWait, s.Orphans, s.Pages, s.Tracked = 0, 0, 0, 0, min(s.Tracked, 1)
	return &bare
}

// why names the walls that a change moves.
func (r *Report) why(c Change) string {
	var whats []string
	for _, w := range r.Walls {
		moves := slices.ContainsFunc(w.Changes, func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name })
		if moves && !slices.Contains(whats, w.Name+": "+w.What) {
			whats = append(whats, w.Name+": "+w.What)
		}
	}
	return strings.Join(whats, "; ")
}

// head is the first lines of a file: what it is for and how it is put in place.
func (l *requirements) head(kind string, use ...string) string {
	out := fmt.Sprintf("# What %d connections need (side %s", l.plan.Connections, l.plan.Side)
	if l.plan.Unread > 0 {
		out += fmt.Sprintf(", %d bytes unread on each", l.plan.Unread)
	}
	out += "), as `myriad doctor --print " + kind + "` prints it.\n"
	for _, line := range use {
		out += "# " + line + "\n"
	}
	return out
}

// This file has what is written for containers. Those have settings of their own
// only where a network namespace has; the others are the machine's below.

// inside are the settings that a container can be given.
func (l *requirements) inside() (own, host []explained) {
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
func onHost(out *strings.Builder, where string, host []explained) {
	if len(host) == 0 {
		return
	}
	fmt.Fprintf(out, "#\n# These are %s, for all its containers; `--print sysctl` writes a file of them:\n", where)
	for _, s := range host {
		fmt.Fprintf(out, "#   %s\n", s.Command())
	}
}

// docker writes the command docker run.
func (l *requirements) docker() string {
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
func (l *requirements) kubernetes() string {
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

func unsafeNames(own []explained) string {
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
func mebibytes(bytes int64) int64 { return ceilDiv(bytes, 1<<20) }

// This file has what is written for a machine: settings of its kernel, limits of
// logins and of services.

// sysctl writes a file as sysctl.d(5) has it.
func (l *requirements) sysctl() string {
	var out strings.Builder
	out.WriteString(l.head("sysctl",
		"Save it as /etc/sysctl.d/90-myriad.conf; `sysctl --system` reads it at once, and each start of the machine does."))
	conntrack := false
	for _, s := range l.sysctls {
		name := s.Name
		if strings.Contains(name, "nf_conntrack") {
			conntrack, name = true, "-"+name
		}
		fmt.Fprintf(&out, "\n# %s\n%s = %s\n", s.why, name, s.To)
	}
	if conntrack {
		out.WriteString("\n# Those of nf_conntrack are there once its module is: name nf_conntrack in\n" +
			"# /etc/modules-load.d/90-myriad.conf, so that it is loaded before this is read.\n")
	}
	if len(l.sysctls) == 0 {
		out.WriteString("\n# Nothing: what a kernel begins with is enough.\n")
	}
	return out.String()
}

// limits writes a file as limits.conf(5) has it. Its star does not mean root.
func (l *requirements) limits() string {
	var out strings.Builder
	out.WriteString(l.head("limits",
		"Save it as /etc/security/limits.d/90-myriad.conf; it holds from the next login on, and not for services."))
	if l.nofile > 1<<20 {
		fmt.Fprintf(&out, "# Without fs.nr_open = %d or more, which `--print sysctl` sets, logins fail.\n", l.nofile)
	}
	item := func(name, why string, value int64) {
		if value <= 0 {
			fmt.Fprintf(&out, "\n# %s: what every machine has is enough.\n", name)
			return
		}
		fmt.Fprintf(&out, "\n# %s\n", why)
		for _, who := range []string{"*   ", "root"} {
			for _, kind := range []string{"soft", "hard"} {
				fmt.Fprintf(&out, "%s %s %s %d\n", who, kind, name, value)
			}
		}
	}
	item("nofile", "open descriptors", l.nofile)
	item("memlock", "locked memory in KiB", (l.memlock+1023)/1024)
	return out.String()
}

// systemd writes a drop-in as systemd.exec(5) and systemd.resource-control(5)
// have it.
func (l *requirements) systemd() string {
	var out strings.Builder
	out.WriteString(l.head("systemd",
		"Save it as /etc/systemd/system/NAME.service.d/90-myriad.conf, NAME being your service's, then:",
		"systemctl daemon-reload && systemctl restart NAME",
		"The kernel's settings are the machine's: `--print sysctl` writes them."))
	out.WriteString("\n[Service]\n")
	if l.nofile > 0 {
		if l.nofile > 1<<20 {
			fmt.Fprintf(&out, "# It takes fs.nr_open = %d or more, which `--print sysctl` sets.\n", l.nofile)
		}
		fmt.Fprintf(&out, "LimitNOFILE=%d\n", l.nofile)
	}
	if l.memlock > 0 {
		fmt.Fprintf(&out, "LimitMEMLOCK=%d\n", l.memlock)
	}
	if l.nofile+l.memlock <= 0 {
		out.WriteString("# No limit: what every service has is enough.\n")
	}
	if l.memory > 0 {
		fmt.Fprintf(&out, "# If MemoryMax= is set, it needs %dM: sockets count too.\n", mebibytes(l.memory))
	}
	if l.uring {
		out.WriteString("# If SystemCallFilter= is set, io_uring needs these too:\n" +
			"#SystemCallFilter=io_uring_setup io_uring_enter io_uring_register\n")
	}
	return out.String()
}
