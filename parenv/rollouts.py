"""What a pool yields: rollouts, episodes and gradients, of one agent and of several."""

from parenv.experience.agent_rollouts import AgentEpisodes as AgentEpisodes
from parenv.experience.agent_rollouts import AgentRollout as AgentRollout
from parenv.experience.agent_rollouts import EpisodesByPolicy as EpisodesByPolicy
from parenv.experience.agent_rollouts import RolloutsByPolicy as RolloutsByPolicy
from parenv.experience.gradient import Gradient as Gradient
from parenv.experience.rollout import Rollout as Rollout
from parenv.experience.transitions import Transitions as Transitions
from parenv.experience.whole_episodes import Episode as Episode
