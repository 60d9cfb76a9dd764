/* Deliberate bugs, for the proof that the simulator would notice them: at most one is compiled into
 * a build (meson setup -Dmutant=NAME, or -DKEEL_MUTANT=MUTANT_NAME for a file), and none into any
 * that is of use. Each is one line beside the code that it breaks:
 *
 *     if (r->now_us < r->wait_until_us && !MUTANT(NO_WAITING_OUT))
 *         return;
 *
 * which the compiler folds away. tests/sim/mutants.sh builds each of them and runs the simulator
 * until it fails; docs/testing.md has the table. */
#ifndef KEEL_MUTANT_H
#define KEEL_MUTANT_H

/*        name, what is wrong, shapes of the simulator that are tried */
#define KEEL_MUTANTS(X)                                                                           \
    X(VOTE_TWICE, "a second vote in a term", "sprint storm")                                      \
    X(ANY_LOG_WINS, "votes for a log that is behind", "sprint storm")                             \
    X(FORGET_VOTE, "the vote is forgotten when a node starts again", "sprint storm")              \
    X(ACK_BEFORE_PERSIST, "entries are acknowledged before they are on the disk", "sprint")       \
    X(VOTE_BEFORE_PERSIST, "a vote leaves before it is on the disk", "sprint storm")              \
    X(VOTE_REQUEST_BEFORE_PERSIST, "a candidate asks before its term is on the disk",             \
      "sprint storm")                                                                             \
    X(COUNT_UNPERSISTED, "a leader counts entries that its own disk does not have", "sprint")     \
    X(LEARNER_COUNTS, "a learner is counted when an entry is committed", "members sprint")        \
    X(COMMIT_OLD_TERM, "an entry of an earlier term is committed by counting", "sprint storm")    \
    X(NO_WAITING_OUT, "a new leader does not wait for the end of the old lease", "storm sprint")  \
    X(RESTART_NAMES_NO_ACK, "a voter that has restarted names no last acknowledgement",           \
      "storm sprint handover")                                                                    \
    X(LEASE_FROM_RECEIPT, "the lease counts from the answer, not from the sending",               \
      "storm handover sprint")                                                                    \
    X(LEASE_WITHOUT_QUORUM, "reads by the lease without having heard from anybody", "sprint")     \
    X(LEASE_BY_OLD_CLOCK, "the lease is compared with a clock read before the request",           \
      "sprint storm handover")                                                                    \
    X(RENOUNCED_LEASE_USED, "a lease that was renounced for a transfer is used",                  \
      "handover members")                                                                         \
    X(HANDOVER_FOR_EVER, "the waiting is left out though another term came after the hand-over",  \
      "handover storm members")                                                                   \
    X(READ_BEFORE_COMMIT, "a read index before the first commit of the term",                     \
      "sprint storm rounds")                                                                      \
    X(READ_WITHOUT_ROUND, "a read index without asking a quorum", "rounds")                       \
    X(READ_IN_OLD_ROUND, "a read is confirmed by a round that began before it", "rounds")         \
    X(CONTEXTS_REPEAT, "reads of every life of a node are numbered alike", "storm rounds")        \
    X(JOINT_ONE_MAJORITY, "a joint configuration is counted as one majority", "members")          \
    X(LEAVE_TOO_EARLY, "the joint configuration is left before it is committed", "members")       \
    X(CHANGE_OVER_CHANGE, "a change of members while the one before is not committed", "members") \
    X(CONFIG_KEPT_ON_CUT, "a configuration whose entry is cut off goes on counting", "members")   \
    X(NEXT_BELOW_MATCH, "an old rejection moves next below what is acknowledged", "storm sprint") \
    X(CUT_BY_OLD_APPEND, "an append that is all known cuts off what follows it", "sprint storm")  \
    X(COMMIT_BEYOND_MATCH, "a follower commits what the append does not vouch for",               \
      "sprint storm")                                                                             \
    X(HEARTBEAT_COMMIT_UNBOUNDED,                                                                 \
      "a heartbeat tells a commit index beyond what the follower is known to hold",               \
      "sprint storm")                                                                             \
    X(INSTALL_KEEPS_LOG, "a snapshot is installed and the log is not reset", "members sprint")    \
    X(DAMAGE_UNNOTICED, "a snapshot is not checked", "members sprint")                            \
    X(STORE_AHEAD_OF_ITS_DATA,                                                                    \
      "a store, and a snapshot of it, names an index that its data does not have",                \
      "members sprint")                                                                           \
    X(CHECKPOINT_AHEAD, "the store gets what the own log does not have", "sprint storm")          \
    X(LAST_RESULT_LOST,                                                                           \
      "the last command of a session is applied again after a snapshot or a restart",             \
      "members sprint")                                                                           \
    X(SESSIONS_LOST, "sessions are missing in the store and in snapshots", "members sprint")      \
    X(HIGHEST_NUMBER_ONLY,                                                                        \
      "a session knows its highest number only, and takes any that is higher", "storm sprint")    \
    X(NO_DEDUPLICATION, "a command that was applied is applied again", "sprint storm")            \
    X(EXPIRED_SESSION_APPLIES, "commands of a session that is over are applied",                  \
      "storm members sprint")                                                                     \
    X(WIPED_VOTES, "nobody remembers which data directory a member had", "members")               \
    X(DEPOSED_EXPIRES, "a leader that was deposed goes on ending leases by its own clock",        \
      "leases sprint")                                                                            \
    X(RENEWAL_FROM_RECEIPT, "a holder counts a renewal from its answer", "leases storm")          \
    X(RENEWED_BY_ANYBODY, "a renewal is confirmed without proof of leadership", "leases storm")   \
    X(LATE_FORWARD, "a forward is proposed after its deadline", "storm sprint")                   \
    X(ABANDONED_GOES_ON, "a command whose caller has given up is sent again as it was",           \
      "storm sprint")

enum keel_mutant {
    MUTANT_NONE,
#define X(name, text, shapes) MUTANT_##name,
    KEEL_MUTANTS(X)
#undef X
};

#ifndef KEEL_MUTANT
#define KEEL_MUTANT MUTANT_NONE
#endif

#define MUTANT(name) (KEEL_MUTANT == MUTANT_##name)

#endif
