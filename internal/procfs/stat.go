package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Stat is a process as /proc/PID/stat tells it.
type Stat struct {
	// PID is the process, Group its process group. Parent is 0 for a process whose
	// parent can't be seen.
	PID    int
	Parent int
	Group  int
	// Command is the name of the executable, cut by the kernel to 15 bytes.
	Command string
	// User and System are the processor time of all its threads, the ended
	// ones included, in steps of 10 ms.
	User   time.Duration
	System time.Duration
	// Waited is the processor time of the children that it has waited for, and of those
	// that they have waited for.
	Waited time.Duration
	// Threads is how many threads it has now.
	Threads int
	// Ended says that the kernel has taken back all that it had: there is only a number left,
	// until its parent takes note. A process that was killed gets there when its sockets and
	// memory are gone.
	Ended bool
}

// CPU is user and system time together.
func (s Stat) CPU() time.Duration { return s.User + s.System }

// ReadStat reads the state of a process. It fails when there is no such
// process.
func ReadStat(pid int) (Stat, error) {
	b, err := readFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	return parseStat(b)
}

// Group returns the processes of a process group, in ascending order. An
// unknown group has none.
func Group(group int) ([]int, error) {
	found, err := Groups(group)
	return found[group], err
}

// Groups is Group for several process groups, by their numbers, of one look at all
// processes of the machine.
func Groups(groups ...int) (map[int][]int, error) {
	found := make(map[int][]int, len(groups))
	err := eachStat(func(pid int, s Stat) {
		if slices.Contains(groups, s.Group) {
			found[s.Group] = append(found[s.Group], pid)
		}
	})
	for _, pids := range found {
		slices.Sort(pids)
	}
	return found, err
}

// Children returns the processes that a process has started and that have not been
// waited for, in ascending order.
func Children(parent int) (pids []int, err error) {
	err = eachStat(func(pid int, s Stat) {
		if s.Parent == parent {
			pids = append(pids, pid)
		}
	})
	slices.Sort(pids)
	return pids, err
}

// eachStat calls see with every process of the machine, in no order.
func eachStat(see func(pid int, s Stat)) error {
	return eachName("/proc", func(name string) error {
		pid, err := strconv.Atoi(name)
		if err != nil {
			return nil // not a process
		}
		s, err := ReadStat(pid)
		switch {
		case Gone(err):
			return nil
		case err == nil:
			see(pid, s)
		}
		return err
	})
}

// Gone reports whether err says that the process has ended.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Positions of the fields that parseStat takes, counted from the state, which
// is the first field after the command's closing parenthesis.
const (
	statParent  = 1
	statGroup   = 2
	statUser    = 11
	statSystem  = 12
	statWaited  = 13 // user, and system in the next
	statThreads = 17
)

// parseStat parses /proc/PID/stat. The command stands in parentheses and may
// itself hold spaces, parentheses and line ends, so it ends at the last
// parenthesis of the file.
func parseStat(b []byte) (Stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("procfs: stat: no command in parentheses")
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) <= statThreads {
		return Stat{}, fmt.Errorf("procfs: stat: %d fields after the command, expected at least %d", len(fields), statThreads+1)
	}
	s := Stat{Command: string(b[open+1 : end])}
	var errs [8]error
	s.PID, errs[0] = strconv.Atoi(strings.TrimSpace(string(b[:open])))
	s.Group, errs[1] = strconv.Atoi(fields[statGroup])
	s.User, errs[2] = ticks(fields[statUser])
	s.System, errs[3] = ticks(fields[statSystem])
	s.Threads, errs[4] = strconv.Atoi(fields[statThreads])
	s.Parent, errs[5] = strconv.Atoi(fields[statParent])
	var user, system time.Duration
	user, errs[6] = ticks(fields[statWaited])
	system, errs[7] = ticks(fields[statWaited+1])
	s.Waited = user + system
	s.Ended = fields[0] == "Z" && s.Threads <= 1 // with more, only its first thread has ended
	if err := errors.Join(errs[:]...); err != nil {
		return Stat{}, fmt.Errorf("procfs: stat: %w", err)
	}
	return s, nil
}
