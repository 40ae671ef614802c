package doctor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asChild has TestApplyLimits change its parent's limit of descriptors, from and
// to what the variable says.
const asChild = "MYRIAD_TEST_NOFILE"

// A shell has its limit raised and taken back by processes that it starts.
func TestApplyLimits(t *testing.T) {
	if change := strings.Fields(os.Getenv(asChild)); len(change) == 2 {
		applyToParent(t, Change{Kind: Nofile, From: change[0], To: change[1]})
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	unchanged := "|shell 256 HARD"
	for _, c := range []struct{ name, shell, to, want string }{
		{"raised", "sh", "512", "nofile of sh (process PID): 256:HARD -> 512:HARD, own 512|shell 512 HARD"},
		{"more already", "sh", "100", "nothing" + unchanged}, // and what takes 512 back finds what it would make
		{"above fs.nr_open", "sh", "2147483584", "nofile: the hard limit of sh (process PID) can't be raised: it takes root (CAP_SYS_RESOURCE), " +
			"and for nofile an fs.nr_open that is as high: operation not permitted; instead: `ulimit -n 2147483584` in a root shell that starts the server" + unchanged},
		{"by sudo", "sudo", "512", "nofile: sudo started this, and its limits end with it; instead: `sudo prlimit --pid $$ --nofile=512:512` in the shell" + unchanged},
		{"by make", "make", "512", "nofile: make started this, and its limits end with it; instead: `ulimit -n 512` in the shell" + unchanged},
		{"by su", "su", "512", "nofile: su started this, and its limits end with it; instead: `su -c \"prlimit --pid $$ --nofile=512:512\"` in the shell" + unchanged},
		{"not ours", "theirs", "512", "nofile: what started this, theirs (process PID), belongs to user 0, and this runs as user 65534; " +
			"instead: `ulimit -n 512` in the shell that starts the server" + unchanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			shell := filepath.Join(t.TempDir(), c.shell) // a process is called as its file
			if err := os.Symlink("/bin/sh", shell); err != nil {
				t.Fatal(err)
			}
			hard := limitText(fromKernel(own.Max))
			want := strings.ReplaceAll(c.want+"|TAKEN|shell 256 HARD", "HARD", hard)
			taken := "nothing"
			switch {
			case c.to == "512" && c.shell == "sh":
				taken = fmt.Sprintf("nofile of sh (process PID): 512:%s -> 256:%[1]s, own 256", hard)
			case c.shell != "sh":
				taken = strings.ReplaceAll(strings.Split(want, "|")[0], "512:512", "256:"+hard)
				taken = strings.ReplaceAll(taken, "ulimit -n 512", "ulimit -Sn 256")
			}
			want = strings.ReplaceAll(want, "TAKEN", taken)
			if got := applyBelow(t, shell, c.to, hard); got != want {
				t.Errorf("\n%s\nexpected\n%s", got, want)
			}
		})
	}
	if _, err := limitOf(1, Change{Kind: Nofile, To: "512"}); err == nil || !strings.HasPrefix(err.Error(), "what started this is process 1,") {
		t.Errorf("the first process: %v", err)
	}
}

// applyBelow has the limit of a shell changed, and that taken back, and returns
// what was told meanwhile.
func applyBelow(t *testing.T, shell, to, hard string) string {
	t.Helper()
	script := `ulimit -Sn 256
change() { ` + asChild + `="$*" "$0" -test.run '^TestApplyLimits$' 3>&1 >&2; echo shell $(ulimit -Sn) $(ulimit -Hn); }
change 64 ` + to + `
change 512:` + hard + ` 256:` + hard
	cmd := exec.CommandContext(t.Context(), shell, "-c", script, os.Args[0])
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	var told, noise bytes.Buffer
	cmd.Stdout, cmd.Stderr = &told, &noise
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, &told, &noise)
	}
	text := strings.ReplaceAll(strings.TrimSpace(told.String()), "\n", "|")
	return strings.ReplaceAll(text, fmt.Sprintf("process %d", cmd.Process.Pid), "process PID")
}

// applyToParent makes the change and tells of it on descriptor 3.
func applyToParent(t *testing.T, c Change) {
	out := os.NewFile(3, "out")
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid())); err == nil && string(name) == "theirs\n" {
		if err := syscall.Setuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	undo, err := Apply(t.Context(), []Change{c})
	switch {
	case err != nil:
		fmt.Fprintln(out, err)
	case len(undo) == 0:
		fmt.Fprintln(out, "nothing")
	default:
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
			t.Fatal(err)
		}
		made := Change{undo[0].Kind, undo[0].Name, undo[0].To, undo[0].From}
		fmt.Fprintf(out, "%v, own %d\n", made, own.Cur)
	}
}
