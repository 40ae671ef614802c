package faults

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/tcp"
)

// The wall clock can jump; what a server measures must not. Time limits are kept
// on the monotonic clock, which time.Now reads too and which differences of its
// results use, as long as nothing takes that reading away. So the packages that
// serve must not call what does, or what reads the wall clock alone.

// servingPackages are those, as folders from the root of the repository.
var servingPackages = []string{"tcp", "internal/engine", "internal/admission", "internal/sock", "internal/supervisor"}

// wallClock is what must not be called there: methods and functions of package
// time that give or compare the wall clock, and calls of the system that do.
var wallClock = []string{
	"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Round", "AddDate", "UTC", "Local",
	"Date", "Parse", "ParseInLocation", "Gettimeofday", "ClockSettime", "CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI",
}

// wallClockIn lists where a file uses the wall clock.
func wallClockIn(name string, source any) (uses []string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		return i.Path.Value == `"time"` || i.Path.Value == `"golang.org/x/sys/unix"` || i.Path.Value == `"syscall"`
	}) {
		return nil, nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && isConstant(c) {
			return false // such as a deadline that is long over
		}
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(wallClock, s.Sel.Name) && !isDuration(s) {
			uses = append(uses, fmt.Sprintf("%s: %s", set.Position(s.Pos()), s.Sel.Name))
		}
		return true
	})
	return uses, nil
}

// isConstant says whether a call is one of package time with nothing but
// literals, such as time.Unix(1, 0).
func isConstant(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "time" && len(c.Args) > 0 && !slices.ContainsFunc(c.Args, func(a ast.Expr) bool {
		_, literal := a.(*ast.BasicLit)
		return !literal
	})
}

// isDuration says whether it is time.Since(x).Round or the like, which rounds a
// duration.
func isDuration(s *ast.SelectorExpr) bool {
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (f.Sel.Name == "Since" || f.Sel.Name == "Until" || f.Sel.Name == "Sub")
}

func TestNoWallClock(t *testing.T) {
	files := 0
	for _, pkg := range servingPackages {
		root := filepath.Join("..", "..", "..", pkg)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != root && (d.Name() == "tcptest" || d.Name() == "testdata" || d.Name() == "enginetest"):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files++
			uses, err := wallClockIn(path, nil)
			for _, use := range uses {
				t.Errorf("%s: the wall clock can jump; what serves uses time.Now, Since, Until and Sub only", use)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 {
		t.Errorf("only %d files were looked at", files)
	}
}

// The check above finds what it is to find.
func TestWallClockIsFound(t *testing.T) {
	uses, err := wallClockIn("sample.go", `package p
import ("time"; "golang.org/x/sys/unix")
func f(t time.Time) (n int64) {
	if time.Since(t).Round(time.Second) > time.Minute { n++ }
	n += t.UnixNano()
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME, &ts)
	return n + time.Now().Round(0).Unix()
}`)
	if err != nil || len(uses) != 4 {
		t.Errorf("found %v, %v; want UnixNano, CLOCK_REALTIME, Unix and Round", uses, err)
	}
}

// A server whose monotonic clock is a hundred days ahead of everybody else's, and
// so tells another time between the two clocks, keeps its time limits all the
// same. That takes a time namespace; the machine's clocks are left alone.
func TestShiftedClock(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a time namespace takes root")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("unshare, of util-linux, is not here: %v", err)
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skipf("the kernel has no time namespaces: %v", err)
	}
	const shift = 100 * 24 * time.Hour
	seconds := fmt.Sprint(int(shift / time.Second))
	onModelsAtOnce(t, 150, func(t *testing.T, model string) {
		settings, err := json.Marshal(spec{
			Addr: "127.0.0.1:0", Model: model, Drain: 40 * time.Second,
			Limits: tcp.Limits{FirstByteTimeout: time.Second, MessageTimeout: time.Second, Linger: 100 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(unshare, "--time", "--monotonic", seconds, "--boottime", seconds, "--", os.Args[0])
		s := launch(t, cmd, string(settings), nil)
		var theirs, ours unix.Timespec
		s.ask("clock", &theirs)
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ours); err != nil {
			t.Fatal(err)
		}
		if ahead := time.Duration(theirs.Nano() - ours.Nano()); ahead < shift-time.Minute {
			t.Fatalf("the server's clock is ahead by %v, want %v", ahead, shift)
		}
		s.begin(&Honest{Addr: s.Addr, Conns: 20, Think: 10 * time.Millisecond})
		const n = 50
		begun := time.Now()
		silent := s.attack(HalfOpen(s.addr, n, nil))
		drip := s.attack(Slowloris(s.addr, n, 100*time.Millisecond))
		s.counts("all are closed", func(st tcp.Stats) bool { return st.Closed.FirstByte == n && st.Closed.Message == n })
		if took := time.Since(begun); took < 900*time.Millisecond {
			t.Errorf("a limit of a second was over after %v", took)
		}
		s.lost(silent, n)
		s.lost(drip, n)
		s.round()
		s.back()
		s.end()
	})
}
