package walls

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// envStage makes the test's program a process of a machine: it is a stage as JSON.
const envStage = "MYRIAD_WALLS_TEST_STAGE"

// stage says what a process is to be. It enters its groups, takes its limit, and then
// does the one thing of the rest that is set.
type stage struct {
	Nofile uint64   // the limit of descriptors, soft and hard; 0 leaves it as it is
	Groups []string // folders of control groups

	Exec []string      // become this command
	Deaf int           // accept connections at this port and never read from them
	Talk *unreadSender // make connections and send on each of them
}

// myriad is the command, built once.
var myriad string

func TestMain(m *testing.M) {
	if text := os.Getenv(envStage); text != "" {
		var s stage
		err := json.Unmarshal([]byte(text), &s)
		if err == nil {
			err = s.runStage()
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

func (s *stage) runStage() error {
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
	case s.Deaf > 0:
		return serveDeaf(s.Deaf)
	case s.Talk != nil:
		return s.Talk.connectAndSend()
	}
	return errors.New("the stage is empty")
}
