package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/procfs"
)

// limit is a limit of the process that started this one, and of this one.
type limit struct {
	resource int
	parent   int    // its process
	name     string // its command
	want     Change
}

// errants start a command for somebody's shell, and end with it.
var errants = []string{"sudo", "sudo-rs", "doas", "pkexec", "run0", "su", "runuser", "timeout", "xargs", "make", "go", "script"}

// limitPlace is where a limit is.
func limitPlace(c Change) (place, error) { return limitOf(os.Getppid(), c) }

// limitOf is where the limit of a process is that started this one. It fails if
// that is not one to change.
func limitOf(parent int, c Change) (place, error) {
	l := &limit{resource: unix.RLIMIT_NOFILE, parent: parent, want: c}
	if c.Kind == Memlock {
		l.resource = unix.RLIMIT_MEMLOCK
	}
	if l.parent <= 1 {
		return nil, fmt.Errorf("what started this is process %d, which everything comes from; instead: `%s` in the shell that starts the server", l.parent, c.Command())
	}
	stat, err := procfs.ReadStat(l.parent)
	if err != nil {
		return nil, err
	}
	if l.name = stat.Command; slices.Contains(errants, l.name) {
		return nil, fmt.Errorf("%s started this, and its limits end with it; instead: `%s` in the shell", l.name, l.throughErrant())
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d", l.parent))
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("what started this, %s, belongs to user %d, and this runs as user %d; instead: `%s` in the shell that starts the server", l, st.Uid, os.Geteuid(), c.Command())
	}
	return l, nil
}

// throughErrant is the command line that changes the limit of the shell in which it
// is typed.
func (l *limit) throughErrant() string {
	command := fmt.Sprintf("prlimit --pid $$ --%s=%s", l.want.Kind, l.want.normal(l.want.To))
	switch l.name {
	case "sudo", "sudo-rs", "doas", "pkexec", "run0":
		return l.name + " " + command
	case "su", "runuser":
		return `su -c "` + command + `"`
	}
	return l.want.Command()
}

func (l *limit) String() string { return fmt.Sprintf("%s (process %d)", l.name, l.parent) }

func (l *limit) read() (string, error) {
	var r unix.Rlimit
	if err := unix.Prlimit(l.parent, l.resource, nil, &r); err != nil {
		return "", l.explain(err)
	}
	return Rlimit{Soft: fromKernel(r.Cur), Hard: fromKernel(r.Max)}.String(), nil
}

func (l *limit) write(value string) error {
	to, err := parseRlimit(value)
	if err != nil {
		return err
	}
	r := unix.Rlimit{Cur: toKernel(to.Soft), Max: toKernel(to.Hard)}
	if err := unix.Prlimit(l.parent, l.resource, &r, nil); err != nil {
		return l.explain(err)
	}
	if os.Getppid() != l.parent {
		return fmt.Errorf("what started this, %s, has ended meanwhile", l)
	}
	if err := unix.Setrlimit(l.resource, &r); err != nil {
		return fmt.Errorf("%s has it, but not this process: %w", l, err)
	}
	return nil
}

// explain says what an error means, and what to type instead.
func (l *limit) explain(err error) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	return fmt.Errorf("the hard limit of %s can't be raised: it takes root (CAP_SYS_RESOURCE), and for nofile an fs.nr_open that is as high: %w; "+
		"instead: `%s` in a root shell that starts the server", l, err, l.want.Command())
}

func fromKernel(limit uint64) int64 {
	if limit > 1<<62 { // RLIM_INFINITY, or as good
		return -1
	}
	return int64(limit)
}

func toKernel(limit int64) uint64 {
	if limit < 0 {
		return unix.RLIM_INFINITY
	}
	return uint64(limit)
}
