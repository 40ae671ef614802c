package clients

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRedisPySuite runs redis-py's own tests of publishing and subscribing, those that
// left-out.txt names excepted.
func TestRedisPySuite(t *testing.T) {
	installed(t)
	for _, file := range []string{"tests/test_pubsub.py", "tests/test_asyncio/test_pubsub.py"} {
		for _, protocol := range []string{"2", "3"} {
			t.Run(fmt.Sprintf("%s/RESP%s", file, protocol), func(t *testing.T) {
				t.Parallel() // the tests mostly wait
				runSuite(t, file, protocol)
			})
		}
	}
}

var summary = regexp.MustCompile(`(?m)^(\d+) passed(?:, (\d+) deselected)?, .*in [0-9.]+s`)

func runSuite(t *testing.T, file, protocol string) {
	all := pytest(t, file, "--collect-only")
	cluster := pytest(t, file, "--collect-only", "-m", "onlycluster")
	args := []string{"-m", "not onlycluster", "--protocol", protocol, "--redis-url", start(t).url("", "")}
	for line := range strings.SplitSeq(strings.TrimSpace(cluster), "\n") {
		if strings.Contains(line, "::") {
			t.Log("left out:", line, "(of a cluster)")
		}
	}
	for _, l := range leftOut(t) {
		if (l.protocol != "*" && l.protocol != protocol) || !strings.HasPrefix(l.test, file+"::") {
			continue
		}
		if !strings.Contains(all, l.test) {
			t.Errorf("left-out.txt names %s, which there is not", l.test)
		}
		t.Logf("left out: %s (%s)", l.test, l.why)
		args = append(args, "--deselect", l.test)
	}
	out := pytest(t, file, args...)
	m := summary.FindStringSubmatch(out)
	if m == nil || strings.Contains(m[0], "skipped") {
		t.Fatalf("not all tests have run:\n%s", out)
	}
	t.Log(m[0])
}

// pytest runs pytest on a file of redis-py, and fails the test if one of those fails.
func pytest(t *testing.T, file string, args ...string) string {
	dir := installed(t)
	cmd := exec.Command(filepath.Join(dir, "python", "bin", "python"),
		append([]string{"-m", "pytest", "-q", "-rsf", "-p", "no:cacheprovider", file}, args...)...)
	cmd.Dir = filepath.Join(dir, "redis-py")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// omission is a line of left-out.txt.
type omission struct{ protocol, test, why string }

func leftOut(t *testing.T) (all []omission) {
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
		all = append(all, omission{words[0], words[1], words[2]})
	}
	return all
}
