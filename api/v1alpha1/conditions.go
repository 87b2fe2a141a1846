package v1alpha1

// Condition types of a ToolCall. Reconciling and Stalled are those of kstatus
// (https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md),
// so that Flux, Argo CD and kpt read a call right from the first second.
const (
	// ConditionSucceeded is Unknown while the call is under way, then True or
	// False. Its reason is the one word people read in kubectl get.
	ConditionSucceeded = "Succeeded"
	// ConditionComplete is True on any end, good or bad, and absent before, so
	// that kubectl wait --for=condition=Complete always returns.
	ConditionComplete = "Complete"
	// ConditionApproved is there only if somebody is asked: Unknown while the
	// call waits for approvals, then True or False.
	ConditionApproved = "Approved"
	// ConditionReconciling is True until the call is complete, then removed.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True on an end that did not succeed, else absent.
	ConditionStalled = "Stalled"
)

// Reasons of the Succeeded condition while a call is under way. The reason of
// an end is [ReasonSucceeded] or [ErrorCode.Reason].
const (
	// ReasonPending: not decided yet, or waiting for something named in the message.
	ReasonPending = "Pending"
	// ReasonAwaitingFirstCall: another call with the same idempotencyKey or the
	// same arguments is under way; this one gets its result.
	ReasonAwaitingFirstCall = "AwaitingFirstCall"
	// ReasonAwaitingApproval: status.approvals says whom the call waits for.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonQueued: waiting for its turn under a limit of concurrent calls.
	ReasonQueued = "Queued"
	// ReasonStarting: allowed; its sandbox is being started.
	ReasonStarting = "Starting"
	// ReasonRunning: the call was sent to its sandbox.
	ReasonRunning = "Running"
	// ReasonRetrying: an attempt has ended, and there will be another one.
	ReasonRetrying = "Retrying"
	// ReasonSucceeded: the tool answered, and the answer is in status.result.data.
	ReasonSucceeded = "Succeeded"
)

// Reasons of the Approved condition; while the call waits, it is
// [ReasonAwaitingApproval], and on a refusal that of the error code.
const (
	// ReasonApproved: every rule has its approvals.
	ReasonApproved = "Approved"
)

// ConditionReady is the condition of a Tool and of a ToolPolicy: True when
// calls can be made with it.
const ConditionReady = "Ready"

// Reasons of the Ready condition of a Tool.
const (
	// ReasonReady: calls are taken.
	ReasonReady = "Ready"
	// ReasonInvalidSchema: inputSchema or outputSchema does not compile.
	ReasonInvalidSchema = "InvalidSchema"
	// ReasonInvalidCommand: container.command breaks a rule of its template.
	ReasonInvalidCommand = "InvalidCommand"
	// ReasonInvalidSandbox: no valid pod can be rendered from the Tool.
	ReasonInvalidSandbox = "InvalidSandbox"
	// ReasonDuplicateFunctionName: another Tool of the namespace has the same function name.
	ReasonDuplicateFunctionName = "DuplicateFunctionName"
	// ReasonNamespaceNotOpen: the namespace is not opened for tools.
	ReasonNamespaceNotOpen = "NamespaceNotOpen"
	// ReasonRuntimeClassNotFound: isolation.runtimeClassName, or the controller's
	// --default-runtime-class, names no RuntimeClass.
	ReasonRuntimeClassNotFound = "RuntimeClassNotFound"
	// ReasonRuntimeClassNotAllowed: the controller's --require-runtime-class does
	// not list the RuntimeClass of the Tool.
	ReasonRuntimeClassNotAllowed = "RuntimeClassNotAllowed"
	// ReasonNetworkPolicyFailed: the Tool's NetworkPolicy could not be put in place.
	ReasonNetworkPolicyFailed = "NetworkPolicyFailed"
)

// ReasonInvalidRule of the Ready condition of a policy: a rule cannot be read,
// and counts against every call.
const ReasonInvalidRule = "InvalidRule"

// ConditionArgumentsKnown of a policy is False if a condition reads an argument
// that no selected Tool declares, or reads one without has() that some
// selected Tool does not require. The policy is in force all the same.
const ConditionArgumentsKnown = "ArgumentsKnown"

// Reasons of the ArgumentsKnown condition.
const (
	// ReasonArgumentsDeclared: all that is read is declared, or guarded.
	ReasonArgumentsDeclared = "Declared"
	// ReasonUnknownArgument: no selected Tool declares it; likely a typing error.
	ReasonUnknownArgument = "UnknownArgument"
	// ReasonUnguardedArgument: a call without it makes the condition fail, which
	// counts against the call.
	ReasonUnguardedArgument = "UnguardedArgument"
)

// ErrorCode says in one word why a call did not succeed. The set is open:
// clients treat an unknown code as failed and follow result.retryable.
type ErrorCode string

// The error codes. "Never started" means that no byte of the call reached a
// tool.
const (
	// ErrorToolNotFound: there is no such Tool.
	ErrorToolNotFound ErrorCode = "tool_not_found"
	// ErrorToolNotAllowed: no policy allows the call, or one denies it.
	ErrorToolNotAllowed ErrorCode = "tool_not_allowed"
	// ErrorInvalidArguments: the arguments do not fit the Tool's schema.
	ErrorInvalidArguments ErrorCode = "invalid_arguments"
	// ErrorApprovalDenied: a person said no.
	ErrorApprovalDenied ErrorCode = "approval_denied"
	// ErrorApprovalExpired: nobody said yes in time.
	ErrorApprovalExpired ErrorCode = "approval_expired"
	// ErrorRateLimited: over a limit; status.retryTime says when to come again.
	ErrorRateLimited ErrorCode = "rate_limited"
	// ErrorIdempotencyConflict: the same idempotencyKey with other arguments.
	ErrorIdempotencyConflict ErrorCode = "idempotency_conflict"
	// ErrorCancelled: ended by the caller, before or during the run.
	ErrorCancelled ErrorCode = "cancelled"
	// ErrorToolUnavailable: never started; the message has the cluster's own words.
	ErrorToolUnavailable ErrorCode = "tool_unavailable"
	// ErrorToolTimeout: the tool ran past its time and was ended.
	ErrorToolTimeout ErrorCode = "tool_timeout"
	// ErrorToolFailed: exit code, signal, out of memory, command not executable.
	ErrorToolFailed ErrorCode = "tool_failed"
	// ErrorInvalidOutput: the output is not of the declared format or schema.
	ErrorInvalidOutput ErrorCode = "invalid_output"
	// ErrorOutputTooLarge: the output is over output.maxBytes, or too large to store.
	ErrorOutputTooLarge ErrorCode = "output_too_large"
	// ErrorOutcomeUnknown: the tool may have run; its answer is lost.
	ErrorOutcomeUnknown ErrorCode = "outcome_unknown"
	// ErrorInternal: a fault of Callgate, and never started.
	ErrorInternal ErrorCode = "internal_error"
)

// Reason is the code as a condition reason: tool_not_found is ToolNotFound.
func (c ErrorCode) Reason() string {
	out := make([]byte, 0, len(c))
	up := true
	for i := 0; i < len(c); i++ {
		b := c[i]
		switch {
		case b == '_':
			up = true
			continue
		case up && b >= 'a' && b <= 'z':
			b -= 'a' - 'A'
		}
		up = false
		out = append(out, b)
	}
	return string(out)
}
