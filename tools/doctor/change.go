package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is what a Change changes.
type Kind string

// The kinds of a Change.
const (
	Sysctl  Kind = "sysctl"  // a setting of the kernel: Name is its name
	Nofile  Kind = "nofile"  // RLIMIT_NOFILE of the shell that starts the server
	Memlock Kind = "memlock" // RLIMIT_MEMLOCK, in bytes, likewise
	Link    Kind = "link"    // an interface that is to be up: Name is its name
	Address Kind = "address" // an address that an interface is to have: Name is the interface, To the address with its network's bits
	Cgroup  Kind = "cgroup"  // a file of a control group: Name is its path
)

// Change is a setting that moves a wall.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Command is the command line of a POSIX shell that makes the change, for whoever has
// the right to. Limits of a process it changes in that shell, for what is started there.
func (c Change) Command() string {
	switch c.Kind {
	case Sysctl:
		return "sysctl -w " + quoteForShell(c.Name) + "=" + quoteForShell(c.To)
	case Nofile:
		return "ulimit -n " + quoteForShell(c.To)
	case Memlock: // the shell counts KiB
		if n, err := strconv.ParseInt(c.To, 10, 64); err == nil {
			return fmt.Sprintf("ulimit -l %d", ceilDiv(n, 1024))
		}
		return "ulimit -l unlimited"
	case Link:
		return "ip link set " + quoteForShell(c.Name) + " " + quoteForShell(c.To)
	case Address:
		if c.To == "" {
			return "ip addr del " + quoteForShell(c.From) + " dev " + quoteForShell(c.Name)
		}
		return "ip addr add " + quoteForShell(c.To) + " dev " + quoteForShell(c.Name)
	case Cgroup:
		return "echo " + quoteForShell(c.To) + " > " + quoteForShell(c.Name)
	}
	return ""
}

// String says what changes, as "net.core.somaxconn: 4096 -> 65535".
func (c Change) String() string {
	name, from := c.Name, c.From
	if c.Kind == Link || c.Kind == Address {
		name = string(c.Kind) + " " + name
	}
	if from == "" {
		from = "none"
	}
	to := c.To
	if to == "" {
		to = "none"
	}
	return fmt.Sprintf("%s: %s -> %s", name, from, to)
}

// inverse is the change that takes this one back.
func (c Change) inverse() Change { return Change{c.Kind, c.Name, c.To, c.From} }

// isShellLimit reports whether the change is of the shell in which it is made, and of what
// is started there.
func (c Change) isShellLimit() bool { return c.Kind == Nofile || c.Kind == Memlock }

// unquotedWord is what a shell takes as it is.
var unquotedWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./:,+@%-]+$`) })

// quoteForShell writes a word of a shell's command line.
func quoteForShell(word string) string {
	if unquotedWord().MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// mergeValues is a value that allows for what both values allow.
func (c Change) mergeValues(value, other string) string {
	switch {
	case c.Name == reservedName:
		ports, ok := parsePortList(value)
		others, otherOK := parsePortList(other)
		if !ok || !otherOK {
			return other
		}
		maps.Copy(others, ports)
		return formatPortList(others)
	case c.Kind == Link, c.Kind == Address, c.Kind == Sysctl && !sysctlInfos[c.Name].isAmount:
		return other
	}
	return maxOfFields(value, other, c.Name == rangeName)
}

// maxOfFields is, number for number, the higher of two values. Of a range the first number
// is the lower. If they are no such values it is the second.
func maxOfFields(value, other string, isRange bool) string {
	had, want := strings.Fields(value), strings.Fields(other)
	if len(had) != len(want) {
		return other
	}
	for i := range want {
		a, ok := parseAmount(had[i])
		b, wantOK := parseAmount(want[i])
		if !ok || !wantOK {
			return other
		}
		if lower := isRange && i == 0; a > b != lower && a != b {
			want[i] = had[i]
		}
	}
	return strings.Join(want, " ")
}

func parseAmount(field string) (int64, bool) {
	if field == "max" || field == "unlimited" {
		return math.MaxInt64, true
	}
	n, err := strconv.ParseInt(field, 10, 64)
	return n, err == nil
}

// changeTimeout bounds how long one change may take.
const changeTimeout = 10 * time.Second

// Apply makes the changes on this machine, in order, by running the Command of each
// with sh in the network namespace of the calling thread, and writes each that was made
// to out. It goes on after one that fails: err joins an error for each. undo are the
// changes that take back what was made, in reverse order. When ctx ends no further
// change is begun.
//
// A limit of a process can't be changed from outside of the shell that starts the
// server: such a change is an error that says what to type there.
func Apply(ctx context.Context, out io.Writer, changes []Change) (undo []Change, err error) {
	var errs []error
	for _, c := range changes {
		if err := c.runCommand(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c, err))
			continue
		}
		fmt.Fprintf(out, "  %s\n", c)
		undo = append([]Change{c.inverse()}, undo...)
	}
	return undo, errors.Join(errs...)
}

func (c Change) runCommand(ctx context.Context) error {
	if c.isShellLimit() {
		return fmt.Errorf("type `%s` in the shell that starts the server, as root if that is refused", c.Command())
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	said, err := exec.CommandContext(ctx, "sh", "-c", c.Command()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("`%s`: %w: %s", c.Command(), err, strings.TrimSpace(string(said)))
	}
	return nil
}
