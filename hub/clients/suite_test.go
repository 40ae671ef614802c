package clients

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRedisPySuite runs redis-py's own pub/sub tests, except those in left-out.txt.
func TestRedisPySuite(t *testing.T) {
	installDir(t)
	for _, file := range []string{"tests/test_pubsub.py", "tests/test_asyncio/test_pubsub.py"} {
		for _, protocol := range []string{"2", "3"} {
			t.Run(fmt.Sprintf("%s/RESP%s", file, protocol), func(t *testing.T) {
				t.Parallel() // the tests mostly wait
				runPytestFile(t, file, protocol)
			})
		}
	}
}

// maxAttempts is how often to try a test: many wait for 0.2 s only, which is short on a busy machine. A real
// difference fails every time.
const maxAttempts = 3

func runPytestFile(t *testing.T, file, protocol string) {
	all := collectTests(t, file)
	cluster := collectTests(t, file, "-m", "onlycluster")
	args := []string{"-m", "not onlycluster", "--protocol", protocol, "--redis-url", startServer(t).url("", "")}
	for line := range strings.SplitSeq(strings.TrimSpace(cluster), "\n") {
		if strings.Contains(line, "::") {
			t.Log("left out:", line, "(of a cluster)")
		}
	}
	for _, l := range readSkippedTests(t) {
		if (l.protocol != "*" && l.protocol != protocol) || !strings.HasPrefix(l.test, file+"::") {
			continue
		}
		if !strings.Contains(all, l.test) {
			t.Errorf("left-out.txt names %s, which there is not", l.test)
		}
		t.Logf("left out: %s (%s)", l.test, l.why)
		args = append(args, "--deselect", l.test)
	}
	cache := "cache_dir=" + t.TempDir()
	for n := 1; ; n++ {
		out, err := runPytest(t, append(args, "-o", cache, file)...)
		if strings.Contains(out, " skipped") {
			t.Fatalf("a test was skipped:\n%s", out)
		}
		if err == nil {
			t.Log(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:])
			return
		}
		if n == maxAttempts {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.SplitSeq(out, "\n") {
			if strings.HasPrefix(line, "FAILED") {
				t.Logf("attempt %d: %s", n, line)
			}
		}
		args = append(args, "--last-failed")
	}
}

func collectTests(t *testing.T, file string, args ...string) string {
	out, err := runPytest(t, append(args, "-p", "no:cacheprovider", "--collect-only", file)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func runPytest(t *testing.T, args ...string) (string, error) {
	dir := installDir(t)
	cmd := exec.Command(filepath.Join(dir, "python", "bin", "python"), append([]string{"-m", "pytest", "-q", "-rsf"}, args...)...)
	cmd.Dir = filepath.Join(dir, "redis-py")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%q: %w", cmd.Args, err)
	}
	return string(out), err
}

type skippedTest struct{ protocol, test, why string }

func readSkippedTests(t *testing.T) (all []skippedTest) {
	f, err := os.Open("left-out.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		words := strings.SplitN(line, " ", 3)
		if len(words) < 3 {
			t.Fatalf("left-out.txt: %q; expected a protocol, a test and why it is left out", line)
		}
		all = append(all, skippedTest{words[0], words[1], words[2]})
	}
	return all
}
