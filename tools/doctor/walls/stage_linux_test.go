package walls

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/doctor"
)

// envStage makes the test's program a process of a machine: it is a stage as JSON.
const envStage = "MYRIAD_WALLS_TEST_STAGE"

// stage says what a process is to be. It enters its groups, takes its limit, and then
// does the one thing of the rest that is set.
type stage struct {
	Nofile uint64   // the limit of descriptors, soft and hard; 0 leaves it as it is
	Groups []string // folders of control groups

	Exec    []string     // become this command
	Examine *examination // ask the doctor
	Deaf    int          // accept connections at this port and never read from them
	Talk    *talk        // make connections and send on each of them
	Restore *remains     // clean up when standard input ends
}

// examination is a question to the doctor: about the process PID, 0 for this one.
type examination struct {
	PID  int
	Plan doctor.Plan
}

// remains are what a test would leave behind.
type remains struct {
	Settings []setting // to be written
	Groups   []string  // folders of control groups, to be removed
}

// setting is a file and what it is to hold.
type setting struct{ File, Value string }

// myriad is the command, built once.
var myriad string

func TestMain(m *testing.M) {
	if text := os.Getenv(envStage); text != "" {
		var s stage
		err := json.Unmarshal([]byte(text), &s)
		if err == nil {
			err = s.play()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		return
	}
	if os.Getenv("MYRIAD_TEST_WALLS") == "" {
		fmt.Println("skipped: these tests fill the machine and change its settings; MYRIAD_TEST_WALLS=1 runs them, alone")
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "myriad-walls-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	myriad = filepath.Join(dir, "myriad")
	if out, err := exec.Command("go", "build", "-o", myriad, "github.com/myriad-go/myriad/tools/myriad").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// play is what the process does.
func (s *stage) play() error {
	for _, group := range s.Groups {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return err
		}
	}
	if s.Nofile > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: s.Nofile, Max: s.Nofile}); err != nil {
			return fmt.Errorf("RLIMIT_NOFILE: %w", err)
		}
	}
	switch {
	case s.Exec != nil:
		os.Unsetenv(envStage)
		return fmt.Errorf("%s: %w", s.Exec[0], syscall.Exec(s.Exec[0], s.Exec, os.Environ()))
	case s.Examine != nil:
		return s.Examine.answer(os.Stdout)
	case s.Deaf > 0:
		return deaf(s.Deaf)
	case s.Talk != nil:
		return s.Talk.speak()
	case s.Restore != nil:
		return s.Restore.restore()
	}
	return errors.New("the stage is empty")
}

// answer writes the doctor's report.
func (e *examination) answer(w io.Writer) error {
	facts, err := doctor.Read(e.PID)
	if err != nil {
		return err
	}
	report, err := doctor.Examine(facts, e.Plan)
	if err != nil {
		return err
	}
	return gob.NewEncoder(w).Encode(report)
}

// restore waits for the end of whoever started it, then cleans up.
func (r *remains) restore() error {
	fmt.Println("restore: ready")
	io.Copy(io.Discard, os.Stdin)
	var failed error
	for _, s := range r.Settings {
		failed = errors.Join(failed, os.WriteFile(s.File, []byte(s.Value), 0))
	}
	for _, group := range r.Groups {
		// What has been in it may take a moment to be gone.
		err := os.Remove(group)
		for end := time.Now().Add(patience); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); err = os.Remove(group) {
			time.Sleep(5 * time.Millisecond)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
