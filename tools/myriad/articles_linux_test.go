package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// This file has the commands of docs/articles run as a reader types them, but smaller and
// shorter: those of myriad in this process, what only reads as it is. Those that change the
// machine, or build something, are left out.

const inChinese = ".zh-CN.md"

var (
	shell = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// program is a row of a table with the arguments of two servers and a load.
	program   = regexp.MustCompile("(?m)^\\| \\d+ \\|[^|`]*\\| `(.*?)` \\| `(.*?)` \\| `(.*?)` \\|$")
	operators = strings.NewReplacer(" | ", " '|' ", " > ", " '>' ", "kill $!", "kill")
	stderr    = regexp.MustCompile(` 2>\S+`)
)

// parseShellCommands returns the commands of a document's shell blocks and program tables as words.
// An empty command follows each block.
func parseShellCommands(t *testing.T, document string) (all [][]string) {
	t.Helper()
	var script strings.Builder
	script.WriteString("words() { printf '%s\\0' \"$@\" $'\\1'; }\n")
	for _, row := range program.FindAllStringSubmatch(document, -1) {
		for _, server := range []string{"plain " + row[1], "serve " + row[2]} {
			document += "\n```sh\nmyriad " + server + " &\nmyriad load " + row[3] + " 127.0.0.1:9000\n```"
		}
	}
	for _, block := range shell.FindAllStringSubmatch(document, -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			line, comment, _ := strings.Cut(strings.TrimSpace(line), " #")
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			if rest, ok := strings.CutSuffix(line, " &"); ok {
				line = rest + " '&'"
			}
			if strings.Contains(comment, "exits with 1") {
				line += " '!'"
			}
			script.WriteString("words " + operators.Replace(stderr.ReplaceAllString(line, "")) + "\n")
		}
		script.WriteString("words\n")
	}
	out, err := exec.Command("bash", "-c", script.String()).Output()
	if err != nil {
		t.Fatalf("bash, which splits the commands: %v", err)
	}
	for command := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x01\x00"), "\x01\x00") {
		all = append(all, strings.Split(strings.TrimSuffix(command, "\x00"), "\x00"))
	}
	return all
}

// readArticles returns the English articles by path.
func readArticles(t *testing.T) map[string]string {
	t.Helper()
	texts := readDocuments(t)
	for file := range texts {
		if !strings.Contains(file, "/articles/") || strings.HasSuffix(file, inChinese) {
			delete(texts, file)
		}
	}
	if len(texts) < 4 {
		t.Fatalf("%d pages of articles, want 4 at least", len(texts))
	}
	return texts
}

func TestArticles(t *testing.T) {
	skipIfShort(t)
	for file, text := range readArticles(t) {
		commands := parseShellCommands(t, text)
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			if len(commands) < 20 {
				t.Errorf("%d commands, want dozens: the test looks past them", len(commands))
			}
			r := &articleRunner{t: t, dir: t.TempDir()}
			for _, words := range commands {
				r.runShellCommand(words)
			}
		})
	}
}

// articleRunner runs the commands of an article.
type articleRunner struct {
	t       *testing.T
	dir     string // working directory
	server  *server
	standIn bool            // the server stands in for an example
	running []chan struct{} // background commands
}

func (r *articleRunner) runShellCommand(words []string) {
	t := r.t
	t.Helper()
	var env []string
	for len(words) > 0 && regexp.MustCompile(`^[A-Z]+=`).MatchString(words[0]) {
		env, words = append(env, words[0]), words[1:]
	}
	if len(words) > 1 && words[0] == "kill" && words[1][0] == '-' {
		return // it stops or continues a process, which the server is not here
	}
	if len(words) == 0 || words[0] == "" || words[0] == "kill" {
		r.stopServerAndWait()
		return
	}
	words, background := removeWord(words, "&")
	words, fails := removeWord(words, "!")
	if i := slices.Index(words, "|"); i > 0 && slices.Equal(words[i:], []string{"|", "tail", "-1"}) {
		words = words[:i]
	}
	switch name := words[0]; name {
	case "myriad":
		r.runMyriad(env, words[1:], background, fails)
	case "go":
		r.runGoTool(words)
	case "curl":
		r.checkCurl(words[1:])
	case "sysctl":
		r.checkSysctls(words[1:])
	case "wrk":
		if _, err := exec.LookPath(name); err == nil {
			r.runProgram("", "wrk", "-c5", "-t1", "-d1s", "http://"+r.server.addr+"/")
		}
	case "ulimit", "nft", "ip", "unshare", "ss", "nstat", "cat", "sleep", "wait", "exit": // of the system
	default:
		if examples[name] == "" {
			t.Errorf("%q: this test knows no %s", words, name)
			return
		}
		r.stopServerAndWait()
		r.server, r.standIn = serveLine(t, examples[name]), true
	}
}

func removeWord(words []string, word string) (rest []string, found bool) {
	i := slices.Index(words, word)
	if i < 0 {
		return words, false
	}
	return slices.Delete(slices.Clone(words), i, i+1), true
}

// stopServerAndWait stops the server and waits for background commands.
func (r *articleRunner) stopServerAndWait() {
	for _, done := range r.running {
		<-done
	}
	if r.running, r.standIn = nil, false; r.server == nil {
		return
	}
	if r.server.Cmd != nil {
		r.server.signalAndWait(r.t, os.Interrupt)
	} else {
		r.server.stop()
	}
	r.server = nil
}

func (r *articleRunner) runMyriad(env, args []string, background, wantFailure bool) {
	t := r.t
	t.Helper()
	want := 0
	if wantFailure {
		want = 1
	}
	switch args[0] {
	case "serve", "plain":
		r.stopServerAndWait()
		r.startArticleServer(env, shrinkLimits(args))
		return
	case "bench":
		if len(args) > 1 && (args[1] == "list" || args[1] == "show") {
			break
		}
		// Whether it can begin is seen by how it ends when it is interrupted at once.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var says lockedBuffer
		if runCommandLine(ctx, append(args, "--out", t.TempDir()+"/report"), strings.NewReader(""), &says, &says) == 2 {
			t.Errorf("myriad %q: %s", args, &says)
		}
		return
	case "doctor":
		if slices.Contains(args, "--fix") {
			return
		}
		if got := invokeCommand(t, args...); got.code == 2 {
			t.Errorf("myriad %q: %s", args, got.output())
		}
		return
	case "load", "hold":
		args = r.withServerAddr(args)
	}
	if !wantFailure || r.standIn { // what a server is to do meanwhile may take it a while
		args = shrinkLimits(args)
	}
	run := func() {
		if got := invokeCommand(t, args...); got.code != want && !r.standIn {
			t.Errorf("myriad %q: exit code %d, want %d: %s", args, got.code, want, got.output())
		}
	}
	if !background {
		run()
		return
	}
	done := make(chan struct{})
	r.running = append(r.running, done)
	go func() {
		defer close(done)
		run()
	}()
}

// startArticleServer starts a server: in its own process if it changes settings of the whole
// process.
func (r *articleRunner) startArticleServer(env, args []string) {
	for i, a := range args {
		if strings.HasPrefix(a, "127.0.0.1:") {
			args[i] = "127.0.0.1:0"
		}
	}
	whole := func(a string) bool {
		return a == "--processes" || a == "--memory-limit"
	}
	args = append(args, "--addr", "127.0.0.1:0")
	if env == nil && !slices.ContainsFunc(args, whole) {
		r.server = serveArgs(r.t, args...)
	} else {
		cmd := newCommandProcess(r.t, args...)
		cmd.Env = append(cmd.Env, env...)
		r.server = startProcess(r.t, cmd)
	}
	if s := r.server; slices.Contains(args, "--admin") {
		testkit.WaitFor(r.t, "where the admin server is", func() bool { return adminLine.MatchString(s.stdout.String()) })
		s.admin = adminLine.FindStringSubmatch(s.stdout.String())[1]
	}
}

// withServerAddr replaces the address in args by that of the running server.
func (r *articleRunner) withServerAddr(args []string) []string {
	r.t.Helper()
	if r.server == nil {
		r.t.Fatalf("myriad %q: no server runs", args)
	}
	args = slices.Clone(args)
	for i, a := range args {
		args[i] = regexp.MustCompile(`127\.0\.0\.1:[89]\d+`).ReplaceAllString(a, r.server.addr)
	}
	return args
}

// examples maps examples to commands that stand in for them here; they have their own tests.
var examples = map[string]string{"waiting": "serve --app lines", "overload": "serve --app http"}

func (r *articleRunner) runGoTool(words []string) {
	switch words[1] {
	case "tool":
		to := ""
		if i := slices.Index(words, ">"); i > 0 {
			words, to = words[:i], words[i+1]
		}
		r.runProgram(to, words...)
	case "build":
	default:
		r.t.Errorf("%q: expected go tool or build", words)
	}
}

func (r *articleRunner) runProgram(outFile string, words ...string) {
	r.t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = r.dir
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		r.t.Errorf("%q: %v, %d bytes of output, %s", words, err, len(out), &says)
	}
	r.saveFile(outFile, out)
}

// saveFile writes a file, unless name is empty.
func (r *articleRunner) saveFile(name string, text []byte) {
	if name == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(r.dir, name), text, 0o600); err != nil {
		r.t.Error(err)
	}
}

var (
	localURL = regexp.MustCompile(`^(?:http://)?127\.0\.0\.1:\d+(/.*)$`)
	seconds  = regexp.MustCompile(`seconds=\d+`)
)

// checkCurl requests what a curl command would from the running server's admin address and matches
// the pattern of a grep.
func (r *articleRunner) checkCurl(args []string) {
	t := r.t
	t.Helper()
	var path, to, pattern string
	for i, a := range args {
		switch {
		case localURL.MatchString(a):
			path = seconds.ReplaceAllString(localURL.FindStringSubmatch(a)[1], "seconds=1")
		case a == "-o":
			to = args[i+1]
		case a == "grep":
			pattern = args[len(args)-1]
		}
	}
	if path == "" || r.server == nil || r.server.admin == "" {
		t.Errorf("curl %q: expected an address behind --admin of a server that runs", args)
		return
	}
	answer, err := http.Get(r.server.admin + path)
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !regexp.MustCompile("(?m)"+pattern).Match(text) {
		t.Errorf("curl %q: %s, %v; want 200 and %q in it: %.500q", args, answer.Status, err, pattern, text)
	}
	r.saveFile(to, text)
}

// checkSysctls checks that the settings exist, except those of modules that may not be loaded.
func (r *articleRunner) checkSysctls(args []string) {
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		if a[0] == '-' || strings.HasPrefix(name, "net.netfilter.") {
			continue
		}
		if _, err := os.Stat("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err != nil {
			r.t.Errorf("sysctl %s: %v", name, err)
		}
	}
}

// maxFlagValues are the limits of flag values in this test.
var maxFlagValues = map[string]string{
	"-c": "20", "-n": "20", "--max-conns": "1000", "--loops": "2", "--processes": "2", "--duration": "50ms", "--warmup": "1ms",
	"--hold-before": "1ms", "--drain": "1s", "--rate": "1000", "--workers": "4",
}

// shrinkLimits is a command line that has less to do.
func shrinkLimits(args []string) []string {
	small := slices.Clone(args)
	timed := false
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		most, bounded := maxFlagValues[name]
		timed = timed || name == "--duration" || name == "--messages"
		switch {
		case !bounded:
			continue
		case !joined && i+1 < len(args):
			value = args[i+1]
		}
		wanted, err := quantity.ParseCount(value)
		if allowed, _ := quantity.ParseCount(most); err == nil && allowed > 0 && wanted <= allowed || strings.HasPrefix(value, "@") {
			continue
		}
		if joined {
			small[i] = name + "=" + most
		} else {
			small[i+1] = most
		}
	}
	switch args[0] {
	case "load", "hold", "offer":
		if !timed {
			small = append(small, "--duration", maxFlagValues["--duration"])
		}
	}
	return small
}

// A page in Chinese has the commands and the figures of the one in English.
func TestChinese(t *testing.T) {
	pages := readArticles(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages["../../README.md"] = string(readme)
	figures := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "|") {
				all = append(all, regexp.MustCompile(`\d+(?:[,.]\d+)*`).FindAllString(line, -1)...)
			}
		}
		return all
	}
	for file, english := range pages {
		other := strings.TrimSuffix(file, ".md") + inChinese
		text, err := os.ReadFile(other)
		if err != nil {
			t.Error(err)
			continue
		}
		chinese := string(text)
		compareLists(t, other, "command", parseShellCommands(t, english), parseShellCommands(t, chinese), slices.Equal)
		equal := func(a, b string) bool { return a == b }
		compareLists(t, other, "block", nonShellBlocks(english), nonShellBlocks(chinese), equal)
		compareLists(t, other, "figure in a table", figures(english), figures(chinese), equal)
	}
}

// nonShellBlocks are a document's blocks that are not for shells.
func nonShellBlocks(document string) []string {
	return slices.DeleteFunc(fence.FindAllString(document, -1), func(block string) bool { return strings.HasPrefix(block, "```sh") })
}

// compareLists says what the first difference of two lists is.
func compareLists[T any](t *testing.T, file, what string, want, got []T, equal func(a, b T) bool) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(want):
			t.Errorf("%s has one %s more than the page in English: %v", file, what, got[i])
		case i >= len(got):
			t.Errorf("%s is missing a %s of the page in English: %v", file, what, want[i])
		case !equal(want[i], got[i]):
			t.Errorf("%s: the %s %v; in English it is %v", file, what, got[i], want[i])
		default:
			continue
		}
		return
	}
}
