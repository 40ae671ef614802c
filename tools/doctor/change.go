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

type Kind string

const (
	Sysctl  Kind = "sysctl"  // kernel setting; Name is the setting
	Nofile  Kind = "nofile"  // RLIMIT_NOFILE of the shell that starts the server
	Memlock Kind = "memlock" // RLIMIT_MEMLOCK of the shell that starts the server, in bytes
	Link    Kind = "link"    // interface, "up" or "down"; Name is the interface
	Address Kind = "address" // address with prefix length, in To to add, in From to remove; Name is the interface
	Cgroup  Kind = "cgroup"  // control group file; Name is its path
)

// Change describes a setting of the machine with its old and new value.
type Change struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Command returns the POSIX shell command that makes the change. The command may require privileges. A new process
// limit applies only to the shell that executes the command, and to programs that this shell starts.
func (c Change) Command() string {
	switch c.Kind {
	case Sysctl:
		return "sysctl -w " + quoteForShell(c.Name) + "=" + quoteForShell(c.To)
	case Nofile:
		return "ulimit -n " + quoteForShell(c.To)
	case Memlock: // the shell uses KiB
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

// String returns the change as text, such as "net.core.somaxconn: 4096 -> 65535".
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

func (c Change) inverse() Change { return Change{c.Kind, c.Name, c.To, c.From} }

func (c Change) isShellLimit() bool { return c.Kind == Nofile || c.Kind == Memlock }

var unquotedWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./:,+@%-]+$`) })

func quoteForShell(word string) string {
	if unquotedWord().MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// valueSatisfyingBoth returns a value of c's setting that satisfies everything that needs value or other. If the two
// values cannot be combined, it returns other.
func (c Change) valueSatisfyingBoth(value, other string) string {
	switch {
	case c.Name == reservedName:
		ports, ok := parsePortListSkippingInvalid(value)
		others, otherOK := parsePortListSkippingInvalid(other)
		if !ok || !otherOK {
			return other
		}
		maps.Copy(others, ports)
		return formatPortList(others)
	case c.Kind == Link, c.Kind == Address, c.Kind == Sysctl && !sysctlInfos[c.Name].isAmount:
		return other
	}
	return maxOfEachField(value, other, c.Name == rangeName)
}

// maxOfEachField combines two values that consist of one or more numbers. For each field, it takes the higher number.
// If isRange is true, it takes the lower number for the first field. If the values cannot be compared, it returns
// other.
func maxOfEachField(value, other string, isRange bool) string {
	had, want := strings.Fields(value), strings.Fields(other)
	if len(had) != len(want) {
		return other
	}
	for i := range want {
		a, ok := parseAmountOrUnlimited(had[i])
		b, wantOK := parseAmountOrUnlimited(want[i])
		if !ok || !wantOK {
			return other
		}
		if lower := isRange && i == 0; a > b != lower && a != b {
			want[i] = had[i]
		}
	}
	return strings.Join(want, " ")
}

func parseAmountOrUnlimited(field string) (int64, bool) {
	if field == "max" || field == "unlimited" {
		return math.MaxInt64, true
	}
	n, err := strconv.ParseInt(field, 10, 64)
	return n, err == nil
}

const changeTimeout = 10 * time.Second

// Apply makes changes on this machine, in order. It runs each Change.Command with sh, in the network namespace of the
// calling thread. It writes each successful change to out. After an error, it continues with the next change. If ctx
// ends, the remaining changes fail.
//
// The changes in undo revert the successful changes, in reverse order. err joins all errors.
//
// Apply cannot change process limits, which must be changed in the shell that starts the server. For each of these
// changes, err contains the command to run in that shell.
func Apply(ctx context.Context, out io.Writer, changes []Change) (undo []Change, err error) {
	var errs []error
	for _, c := range changes {
		if err := c.apply(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c, err))
			continue
		}
		fmt.Fprintf(out, "  %s\n", c)
		undo = append([]Change{c.inverse()}, undo...)
	}
	return undo, errors.Join(errs...)
}

func (c Change) apply(ctx context.Context) error {
	if c.isShellLimit() {
		return fmt.Errorf("run `%s` in the shell that starts the server, as root if permission is denied", c.Command())
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	said, err := exec.CommandContext(ctx, "sh", "-c", c.Command()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("`%s`: %w: %s", c.Command(), err, strings.TrimSpace(string(said)))
	}
	return nil
}
