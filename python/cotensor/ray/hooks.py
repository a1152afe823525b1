"""Runtime environments in which workers are set up."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ..errors import InvalidError

#: The hook that Ray runs in each worker.
HOOK = "cotensor.ray.setup.setup_worker"
#: Names the hook of the program, which runs after this one.
OWN_HOOK = "COTENSOR_RAY_SETUP_HOOK"
_KEY = "worker_process_setup_hook"
#: The variable that workers of Ray read. Ray sets it from the key in ``ray.init``, and not for an actor or a task.
_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


def runtime_env(own: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """A runtime environment for ``ray.init``, actors and tasks: the program's ``own`` one, with the hook that sets workers up.

    A hook of its own is named by a string, ``module.function``; Ray takes one hook, so that another object raises
    :class:`InvalidError`.
    """
    env = dict(own or {})
    hook = env.get(_KEY)
    variables = {**env.get("env_vars", {}), _VARIABLE: HOOK}
    if hook is None or hook == HOOK:
        return {**env, _KEY: HOOK, "env_vars": variables}
    if not isinstance(hook, str) or "." not in hook:
        raise InvalidError(f"{_KEY}: name the function as a string, such as 'module.function', not {hook!r}", field=_KEY)
    return {**env, _KEY: HOOK, "env_vars": {**variables, OWN_HOOK: hook}}


def agents_env() -> Dict[str, Any]:
    """What the runtime environment of an agent has instead of that of the program that starts it: no hook of its own, since the
    agent works for other programs too. Ray adds all else, such as the packages of the program."""
    return {"env_vars": {_VARIABLE: HOOK, OWN_HOOK: ""}}
