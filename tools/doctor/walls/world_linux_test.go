package walls

import (
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/faults"
)

// testNamespace is a small machine: a network namespace with loopback up, and the limits and
// groups that its processes begin with. Its methods are for the test's goroutine.
type testNamespace struct {
	t      *testing.T
	calls  chan func() // run by the one thread that is in the namespace
	nofile int64       // the limit of descriptors that processes begin with; 0 leaves it as it is
	group  string      // the control group that they begin in
}

func newTestNamespace(t *testing.T) *testNamespace {
	t.Helper()
	network, err := faults.NewNamespace()
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	w := &testNamespace{t: t, calls: make(chan func())}
	entered := make(chan error, 1)
	go func() {
		entered <- network.RunInside(func() error {
			for f := range w.calls {
				f()
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		close(w.calls)
		testkit.ExpectNoError(t, errors.Join(<-entered, network.Close()))
	})
	return w
}

func (w *testNamespace) callInNamespace(f func() error) error {
	done := make(chan error)
	w.calls <- func() { done <- f() }
	return <-done
}

func (w *testNamespace) setSysctl(name, value string) {
	w.t.Helper()
	file := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	testkit.RequireNoError(w.t, w.callInNamespace(func() error { return os.WriteFile(file, []byte(value), 0) }))
}

// examineProcess asks the doctor, within the world, about a process, 0 for one that the world would start.
func (w *testNamespace) examineProcess(pid int, plan doctor.Plan) *doctor.Report {
	w.t.Helper()
	var report *doctor.Report
	testkit.RequireNoError(w.t, w.callInNamespace(func() error {
		facts, err := doctor.Read(pid)
		if err != nil {
			return err
		}
		if n := w.nofile; pid == 0 && n > 0 {
			facts.Process.Nofile = doctor.Rlimit{Soft: n, Hard: n}
		}
		report, err = doctor.Examine(facts, plan)
		return err
	}))
	return report
}

func (w *testNamespace) applyChanges(changes []doctor.Change) {
	w.t.Helper()
	if len(changes) == 0 {
		w.t.Fatal("the doctor has nothing to change")
	}
	testkit.RequireNoError(w.t, w.callInNamespace(func() error {
		_, err := doctor.Apply(w.t.Context(), io.Discard, changes)
		return err
	}))
}

// Where servers listen. Each world has these ports for itself.
const (
	target = "127.0.0.1:900"
	admin  = "127.0.0.1:901"
)

// servedConns is how many connections the server says that it has.
func (w *testNamespace) servedConns() int { return w.readMetric("myriad_connections") }

// readMetric asks the server for one of its metrics.
func (w *testNamespace) readMetric(name string) int {
	w.t.Helper()
	var nc net.Conn
	testkit.RequireNoError(w.t, w.callInNamespace(func() (err error) { nc, err = net.Dial("tcp", admin); return err }))
	conn := testkit.NewConn(w.t, nc)
	defer conn.Close()
	conn.Send("GET /metrics HTTP/1.0\r\n\r\n")
	_, text := conn.ReadResponse()
	found := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(name) + " (.*)$").FindStringSubmatch(text)
	if found == nil {
		w.t.Fatalf("the server has no metric %s", name)
	}
	value, err := strconv.ParseFloat(found[1], 64)
	testkit.RequireNoError(w.t, err)
	return int(value)
}

func findWall(t *testing.T, r *doctor.Report, name string) *doctor.Wall {
	t.Helper()
	i := slices.IndexFunc(r.Walls, func(w doctor.Wall) bool { return w.Name == name })
	if i < 0 {
		t.Fatalf("the doctor knows no wall %q, but %+v", name, r.Walls)
	}
	return &r.Walls[i]
}

// checkClose says that a count is the predicted one, to one in a hundred.
func checkClose(t *testing.T, what string, measured int, predicted int64) {
	t.Helper()
	t.Logf("%s: predicted %d, measured %d", what, predicted, measured)
	if off := int64(measured) - predicted; max(off, -off)*100 > predicted {
		t.Errorf("%s: %d connections, and the doctor predicted %d; want the same within 1 %%", what, measured, predicted)
	}
}

// examineFirstWall examines a process, and checks that a wall is what stops the plan.
func (w *testNamespace) examineFirstWall(name string, pid int, plan doctor.Plan) *doctor.Report {
	w.t.Helper()
	r := w.examineProcess(pid, plan)
	if r.First != name {
		w.t.Errorf("the first wall is %q, at %d; want %q", r.First, r.Holds, name)
	}
	return r
}

// checkMoved checks that after the doctor's changes a wall no longer stops the plan.
func (w *testNamespace) checkMoved(name string, plan doctor.Plan) {
	w.t.Helper()
	if wall := findWall(w.t, w.examineProcess(0, plan), name); wall.Exceeded(plan.Connections) {
		w.t.Errorf("after what the doctor changed: the wall %s is at %d", name, wall.Holds)
	}
}
