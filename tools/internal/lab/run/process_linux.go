package run

import (
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// startOnCPUs starts a process on the given CPUs, or on those of this thread if there are none. The caller's
// thread must be locked and keeps the changed affinity.
func startOnCPUs(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) > 0 {
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
	}
	// A separate group keeps the terminal's Ctrl-C from the child, which the lab ends itself. It also makes the
	// child's children reachable.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd.Start()
}

// killGroup kills the remaining processes of a child's process group. The kernel does not reuse the ID while a
// member lives. Without members, the call has no effect.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }

// isGroupAlive reports whether the group has a process that has not ended.
func isGroupAlive(group int) bool {
	if unix.Kill(-group, 0) != nil {
		return false
	}
	all, err := procfs.ReadAllStats()
	return err == nil && slices.ContainsFunc(all, func(s procfs.Stat) bool { return s.Group == group && !s.Ended })
}

// readAllowedCPUs returns the CPUs that this process may run on.
func readAllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// raiseDescriptorLimit raises the soft limit of open descriptors to the hard limit, for this process and its
// future children.
func raiseDescriptorLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
