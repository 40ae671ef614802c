package walls

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/internal/faults"
	"github.com/myriad-go/myriad/tools/load"
)

// patience is how long a test waits for what must happen.
const patience = 100 * time.Second

// testNamespace is a small machine: a network namespace with loopback up, and the limits and
// groups that its processes begin with. Its methods are for the test's goroutine.
type testNamespace struct {
	t     *testing.T
	calls chan func() // run by the one thread that is in the namespace
	stage stage       // what processes begin with
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
		if n := int64(w.stage.Nofile); pid == 0 && n > 0 {
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

func (w *testNamespace) runHold(args ...string) *load.Result {
	w.t.Helper()
	p := w.startStage(stage{Exec: append([]string{myriad, "hold", "--json"}, args...)})
	p.ExitCode()
	return p.result()
}

// startServe starts the command serve, with its metrics, and waits until it serves.
func (w *testNamespace) startServe(args ...string) *process {
	w.t.Helper()
	p := w.startStage(stage{Exec: append([]string{myriad, "serve", "--addr", target, "--admin", admin}, args...)})
	p.waitForOutput("serving echo on")
	return p
}

// Where servers listen. Each world has these ports for itself.
const (
	target = "127.0.0.1:900"
	admin  = "127.0.0.1:901"

	deafPort = 902
)

// servedConns is how many connections the server says that it has.
func (w *testNamespace) servedConns() int { return w.readMetric("myriad_connections") }

// readMetric asks the server for one of its metrics.
func (w *testNamespace) readMetric(name string) (value int) {
	w.t.Helper()
	testkit.RequireNoError(w.t, w.callInNamespace(func() error {
		conn, err := net.Dial("tcp", admin)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
				f, err := strconv.ParseFloat(n, 64)
				value = int(f)
				return err
			}
		}
		return fmt.Errorf("the server has no metric %s", name)
	}))
	return value
}

func findWall(t *testing.T, r *doctor.Report, name string) *doctor.Wall {
	t.Helper()
	for i := range r.Walls {
		if r.Walls[i].Name == name {
			return &r.Walls[i]
		}
	}
	var names []string
	for _, w := range r.Walls {
		names = append(names, w.Name)
	}
	t.Fatalf("the doctor knows no wall %q, but %v", name, names)
	return nil
}

// checkClose says that a count is the predicted one, to one in a hundred.
func checkClose(t *testing.T, what string, measured int, predicted int64) {
	t.Helper()
	t.Logf("%s: predicted %d, measured %d", what, predicted, measured)
	if off := int64(measured) - predicted; max(off, -off)*100 > predicted {
		t.Errorf("%s: %d connections, and the doctor predicted %d; want the same within 1 %%", what, measured, predicted)
	}
}

// checkFirstWall checks that the wall is what the doctor says stops the plan.
func checkFirstWall(t *testing.T, r *doctor.Report, name string) {
	t.Helper()
	if r.First != name {
		t.Errorf("the first wall is %q, at %d; want %q", r.First, r.Holds, name)
	}
}
