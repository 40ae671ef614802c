package clients

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestGoRedisSuite runs go-redis' own specs of publishing and subscribing. They find the hub at a port that the copy
// of the module is given.
func TestGoRedisSuite(t *testing.T) {
	t.Parallel()
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/redis/go-redis/v9").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "go-redis")
	if err := os.CopyFS(dir, os.DirFS(strings.TrimSpace(string(folder)))); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(startServer(t).addr)
	main := filepath.Join(dir, "main_test.go")
	text, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	given := bytes.Replace(text, []byte(`redisStackPort = "6379"`), []byte(`redisStackPort = "`+port+`"`), 1)
	if bytes.Equal(given, text) {
		t.Fatal("main_test.go has no redisStackPort of 6379 any more")
	}
	if err := os.Chmod(main, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(main, given, 0o600); err != nil {
		t.Fatal(err)
	}
	for attempt := 1; ; attempt++ {
		cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-run", "^TestGinkgoSuite$", "-ginkgo.no-color", "-ginkgo.focus-file", "/pubsub_test.go", ".")
		cmd.Dir = dir
		// RE_CLUSTER keeps it from asking for rings and sentinels. A version from 8.8 on has notifications of keys.
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "RE_CLUSTER=true", "REDIS_VERSION=7.0")
		out, err := cmd.CombinedOutput()
		ran := regexp.MustCompile(`(\d+) Passed \| 0 Failed`).FindSubmatch(out)
		if err == nil && ran != nil && string(ran[1]) != "0" {
			t.Logf("%s", ran[0])
			return
		}
		if attempt == maxAttempts {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
