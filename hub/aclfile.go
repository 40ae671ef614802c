package hub

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

type aclAccount struct {
	enabled, noPassword, certLogin bool
	passwords                      []passwordHash
	selectors                      []aclSelector // selectors[0] is built from the rules outside parentheses
}

// aclSelector allows a set of commands for a set of topics.
type aclSelector struct {
	commands  uint64 // a bit for each index of commandNames; unknownCommandBit covers all others
	allTopics bool
	topics    []glob
}

var allowAll = aclSelector{commands: ^uint64(0), allTopics: true}

func (s *aclSelector) allowsTopic(name string) bool {
	return s.allTopics || slices.ContainsFunc(s.topics, func(g glob) bool { return g.matches(name) })
}

func (s *aclSelector) allowsExactPattern(pattern string) bool {
	return s.allTopics || slices.ContainsFunc(s.topics, func(g glob) bool { return g.pattern == pattern })
}

// commandNames lists the commands that ACL rules can name, with their Redis categories.
var commandNames = [...]struct{ name, categories string }{
	{"publish", "pubsub fast"}, {"spublish", "pubsub fast"},
	{"subscribe", "pubsub slow"}, {"psubscribe", "pubsub slow"}, {"ssubscribe", "pubsub slow"},
	{"unsubscribe", "pubsub slow"}, {"punsubscribe", "pubsub slow"}, {"sunsubscribe", "pubsub slow"},
	{"pubsub|channels", "pubsub slow"}, {"pubsub|numsub", "pubsub slow"}, {"pubsub|numpat", "pubsub slow"},
	{"pubsub|shardchannels", "pubsub slow"}, {"pubsub|shardnumsub", "pubsub slow"}, {"pubsub|help", "slow"},
	{"auth", "fast connection"}, {"hello", "fast connection"}, {"quit", "fast connection"}, {"reset", "fast connection"},
	{"ping", "fast connection"}, {"echo", "fast connection"}, {"select", "fast connection"}, {"time", "fast"},
	{"client|id", "slow connection"}, {"client|getname", "slow connection"}, {"client|setname", "slow connection"},
	{"client|setinfo", "slow connection"}, {"client|info", "slow connection"}, {"client|reply", "slow connection"},
	{"client|help", "slow connection"}, {"client|no-touch", "slow connection"},
	{"client|no-evict", "admin slow dangerous connection"},
	{"client|list", "admin slow dangerous connection"}, {"client|kill", "admin slow dangerous connection"},
	{"config|get", "admin slow dangerous"}, {"config|help", "slow"}, {"info", "slow dangerous"},
	{"client|getredir", "slow connection"}, {"command", "slow connection"}, {"command|count", "slow connection"},
	{"command|docs", "slow connection"}, {"command|info", "slow connection"}, {"command|help", "slow connection"},
	{"multi", "fast transaction"}, {"exec", "slow transaction"}, {"discard", "fast transaction"},
	{"watch", "fast transaction"}, {"unwatch", "fast transaction"},
	{"cluster|slots", "slow"}, {"cluster|shards", "slow"}, {"cluster|nodes", "slow"}, {"cluster|info", "slow"},
	{"cluster|myid", "slow"}, {"cluster|keyslot", "slow"}, {"cluster|countkeysinslot", "slow"},
	{"readonly", "fast connection"}, {"readwrite", "fast connection"}, {"asking", "fast connection"},
	{"role", "admin fast dangerous"},
	{"acl|whoami", "slow"}, {"flushdb", "keyspace write slow dangerous"}, {"flushall", "keyspace write slow dangerous"},
}

const unknownCommandBit = uint64(1) << 63

var commandBit = func() map[string]uint64 {
	bits := make(map[string]uint64)
	for i, c := range commandNames {
		bits[c.name] = 1 << i
	}
	return bits
}()

var (
	publishBits      = [kindCount]uint64{Topic: commandBit["publish"], Sharded: commandBit["spublish"]}
	subscribeBits    = [kindCount]uint64{commandBit["subscribe"], commandBit["psubscribe"], commandBit["ssubscribe"]}
	unrestrictedBits = commandBit["auth"] | commandBit["hello"] | commandBit["quit"] | commandBit["reset"]
)

const categories = " keyspace read write set sortedset list hash string bitmap hyperloglog geo stream pubsub" +
	" admin fast slow blocking dangerous connection transaction scripting "

// parseCommandSubcommandsOrCategory returns the bits of a command and its subcommands, or of a category such as @read.
func parseCommandSubcommandsOrCategory(nameOrCategory string) (commandBits uint64, err error) {
	nameOrCategory = strings.ToLower(nameOrCategory)
	category, isCategory := strings.CutPrefix(nameOrCategory, "@")
	switch {
	case nameOrCategory == "@all":
		return ^uint64(0), nil
	case isCategory && !strings.Contains(categories, " "+category+" "):
		return 0, fmt.Errorf("unknown category @%s; expected one of @all%s", category, strings.ReplaceAll(strings.TrimRight(categories, " "), " ", " @"))
	}
	for i, c := range commandNames {
		if isCategory && slices.Contains(strings.Fields(c.categories), category) ||
			!isCategory && (c.name == nameOrCategory || strings.HasPrefix(c.name, nameOrCategory+"|")) {
			commandBits |= 1 << i
		}
	}
	if commandBits == 0 && !isCategory {
		return 0, fmt.Errorf("unknown command %q; expected one that the hub supports, such as publish, subscribe or client|kill, or a category such as @pubsub", nameOrCategory)
	}
	return commandBits, nil
}

type aclLimits struct{ maxBytes, maxLineBytes, maxUsers int }

var defaultACLLimits = aclLimits{maxBytes: 64 << 20, maxLineBytes: 1 << 20, maxUsers: 1_000_000}

// parseACLFile parses a Redis ACL file. Passwords must be unique, because a password alone can identify its user.
func parseACLFile(r io.Reader, limits aclLimits) (accounts map[string]*aclAccount, userNameByPassword map[passwordHash]string, err error) {
	accounts, userNameByPassword = make(map[string]*aclAccount), make(map[passwordHash]string)
	in := &io.LimitedReader{R: r, N: int64(limits.maxBytes) + 1}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, limits.maxLineBytes)
	number := 1
	fail := func(format string, args ...any) (map[string]*aclAccount, map[passwordHash]string, error) {
		return nil, nil, fmt.Errorf("hub: users file, line %d: %w", number, fmt.Errorf(format, args...))
	}
	for ; lines.Scan(); number++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		if len(words) < 2 || words[0] != "user" {
			return fail("found %.40q; expected user NAME RULES... or a comment that begins with #", lines.Text())
		}
		name := words[1]
		switch {
		case accounts[name] != nil:
			return fail("user %s is defined twice; expected one line per user", name)
		case len(accounts) == limits.maxUsers:
			return fail("too many users; expected at most %d", limits.maxUsers)
		}
		a, err := parseUserRules(words[2:])
		if err != nil {
			return fail("user %s: %w", name, err)
		}
		accounts[name] = a
		for _, d := range a.passwords {
			if other, ok := userNameByPassword[d]; ok {
				return fail("user %s has the same password as user %s; expected unique passwords, because a token identifies its user", name, other)
			}
			userNameByPassword[d] = name
		}
	}
	switch err := lines.Err(); {
	case in.N == 0:
		return fail("the file is too large; expected at most %d bytes", limits.maxBytes)
	case errors.Is(err, bufio.ErrTooLong):
		return fail("the line is too long; expected at most %d bytes", limits.maxLineBytes)
	case err != nil:
		return fail("%w", err)
	}
	return accounts, userNameByPassword, nil
}

func parseUserRules(rules []string) (*aclAccount, error) {
	a := &aclAccount{selectors: make([]aclSelector, 1)}
	for len(rules) > 0 {
		rule := rules[0]
		rules = rules[1:]
		if !strings.HasPrefix(rule, "(") {
			if err := a.applyRule(rule); err != nil {
				return nil, err
			}
			continue
		}
		for !strings.HasSuffix(rule, ")") {
			if len(rules) == 0 {
				return nil, fmt.Errorf("selector %q is not closed; expected ) at its end", rule)
			}
			rule += " " + rules[0]
			rules = rules[1:]
		}
		var s aclSelector
		for _, r := range strings.Fields(rule[1 : len(rule)-1]) {
			if err := s.applyCommandOrTopicRule(r); err != nil {
				return nil, fmt.Errorf("%s: %w", rule, err)
			}
		}
		a.selectors = append(a.selectors, s)
	}
	return a, nil
}

func (a *aclAccount) applyRule(rule string) error {
	switch rule {
	case "on", "off":
		a.enabled = rule == "on"
	case "nopass":
		a.noPassword, a.passwords = true, nil
	case "resetpass":
		a.noPassword, a.passwords = false, nil
	case "cert":
		a.certLogin = true
	case "reset":
		*a = aclAccount{selectors: make([]aclSelector, 1)}
	case "clearselectors":
		a.selectors = a.selectors[:1]
	case "sanitize-payload", "skip-sanitize-payload": // meaningful for a store only
	default:
		if strings.ContainsRune("><#!", rune(rule[0])) {
			return a.addOrRemovePassword(rule[0], rule[1:])
		}
		return a.selectors[0].applyCommandOrTopicRule(rule)
	}
	return nil
}

func (a *aclAccount) addOrRemovePassword(op byte, passwordOrHash string) error {
	d := passwordHash(sha256.Sum256([]byte(passwordOrHash)))
	if op == '#' || op == '!' {
		if len(passwordOrHash) != hex.EncodedLen(len(d)) || strings.ToLower(passwordOrHash) != passwordOrHash {
			return fmt.Errorf("%c is followed by %d characters; expected the SHA-256 of a password as %d lowercase hexadecimal digits", op, len(passwordOrHash), hex.EncodedLen(len(d)))
		}
		if _, err := hex.Decode(d[:], []byte(passwordOrHash)); err != nil {
			return fmt.Errorf("%c is followed by invalid characters; expected lowercase hexadecimal digits", op)
		}
	}
	index := slices.Index(a.passwords, d)
	switch {
	case op == '>' && passwordOrHash == "":
		return errors.New("empty password; expected a password or nopass")
	case op == '>' || op == '#':
		if a.noPassword = false; index < 0 {
			a.passwords = append(a.passwords, d)
		}
	case index < 0:
		return errors.New("cannot remove a password that the user does not have; expected one set by an earlier rule")
	default:
		a.passwords = slices.Delete(a.passwords, index, index+1)
	}
	return nil
}

func (s *aclSelector) applyCommandOrTopicRule(rule string) error {
	switch rule {
	case "allchannels", "&*":
		s.allTopics, s.topics = true, nil
		return nil
	case "resetchannels":
		s.allTopics, s.topics = false, nil
		return nil
	case "allcommands":
		rule = "+@all"
	case "nocommands":
		rule = "-@all"
	case "allkeys", "resetkeys": // meaningful for a store only
		return nil
	}
	switch rule[0] {
	case '&':
		if s.allTopics {
			return fmt.Errorf("%s after allchannels or &* has no effect; expected resetchannels before it", rule)
		}
		if !s.allowsExactPattern(rule[1:]) {
			s.topics = append(s.topics, compileGlob(rule[1:]))
		}
		return nil
	case '~', '%': // key patterns of a store
		return nil
	case '+', '-':
		bits, err := parseCommandSubcommandsOrCategory(rule[1:])
		if rule[0] == '+' {
			s.commands |= bits
		} else {
			s.commands &^= bits
		}
		return err
	}
	return fmt.Errorf("unknown rule %q; expected one listed in docs/hub.md, such as on, >password, &topic.* or +subscribe", rule)
}
